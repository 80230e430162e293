// What every Node contender tells the bench: the same files and verbs as tally.py, where they are explained.
'use strict';
const fs = require('fs');
const path = require('path');

const FOLDER = process.env.BENCH_FOLDER || '.';
exports.URL = process.env.BENCH_URL;
exports.SLOTS = Number(process.env.BENCH_SLOTS || 100);
exports.DEFAULTS = Boolean(process.env.BENCH_DEFAULTS);
exports.QUEUES = Number(process.env.BENCH_QUEUES || 0);
exports.TIMED_MS = Number(process.env.BENCH_TIMED_MS || 0);
const [KIND, AMOUNT] = (process.env.BENCH_HANDLER || '').split('-');
exports.FAILS = KIND === 'fail';
const PAYLOAD = Number(process.env.BENCH_PAYLOAD || 0);
const letter = () => Math.random().toString(36).slice(2, 3) || 'x';
exports.MORE = PAYLOAD ? { data: Array.from({ length: PAYLOAD }, letter).join('') } : {};

const now = () => Number(process.hrtime.bigint()) / 1e9; // CLOCK_MONOTONIC, as in Python
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));
exports.sleep = sleep;

let count = 0;
let first = 0;
let last = 0;
let written = 0;

function write() {
  if (written === count) return;
  written = count;
  const bytes = Buffer.alloc(64);
  bytes.writeBigInt64LE(BigInt(count), 0);
  bytes.writeDoubleLE(first, 8);
  bytes.writeDoubleLE(last, 16);
  const file = path.join(FOLDER, `${process.pid}.tally`);
  fs.writeFileSync(`${file}.new`, bytes);
  fs.renameSync(`${file}.new`, file);
}

// Node has no mmap: the tally is written every 20 ms, which is less per job than Python's.
exports.called = () => {
  last = now();
  if (count === 0) {
    first = last;
    setInterval(write, 20).unref();
  }
  count++;
};

// What blocks a thread in Python is awaited here: Node has no threads to block.
exports.handled = async () => {
  if (KIND === 'block' || KIND === 'wait') await sleep(Number(AMOUNT));
  if (exports.FAILS && Math.random() < Number(AMOUNT) / 100) throw new Error('unlucky');
  exports.called();
};

exports.queues = () => Array.from({ length: exports.QUEUES }, (_, number) => `q${number}`);

exports.delayed = (sent) => fs.appendFileSync(path.join(FOLDER, 'delays'), `${(now() - sent).toFixed(9)}\n`);
const happened = (what) =>
  fs.appendFileSync(path.join(FOLDER, 'events'), `${what} ${now().toFixed(6)} ${process.pid}\n`);
exports.sleepy = async () => {
  happened('start');
  await sleep(30000);
  happened('end');
};

exports.timed = async (jobs, enqueue) => {
  const began = now();
  await enqueue();
  console.log(JSON.stringify({ per_second: jobs / (now() - began) }));
};

exports.inChunks = async (jobs, size, enqueue) => {
  for (let start = 0; start < jobs; start += size) {
    const numbers = [];
    for (let number = start; number < Math.min(jobs, start + size); number++) numbers.push(number);
    await enqueue(numbers);
  }
};

exports.pace = async (enqueue, jobs, gapMs) => {
  const began = now();
  for (let number = 0; number < jobs; number++) {
    const wait = (began - now()) * 1000 + number * gapMs;
    if (wait > 0) await sleep(wait);
    await enqueue(now());
  }
};

exports.groupOf = (shape, number, jobs) => {
  const [kind, groups] = (shape || 'none').split('-');
  if (kind === 'none') return null;
  if (kind === 'hot') return 'hot';
  return kind === 'adjacent' ? `g${Math.floor((number * groups) / jobs)}` : `g${number % groups}`;
};

exports.emptyRedis = async () => {
  const module_ = require('ioredis');
  const client = new (module_.default || module_)(exports.URL);
  await client.flushdb();
  client.disconnect();
};

exports.main = async (verbs) => {
  const [verb, ...words] = process.argv.slice(2);
  await verbs[verb](...words.map((word) => (/^\d+$/.test(word) ? Number(word) : word)));
  if (verb !== 'work') process.exit(0);
};
