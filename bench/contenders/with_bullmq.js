// BullMQ: BENCH_SLOTS jobs at once in one process, finished jobs removed.
'use strict';
const { Queue, Worker } = require('bullmq');
const tally = require('./tally.js');

const OPTIONS = { removeOnComplete: true, removeOnFail: true };
const place = new URL(tally.URL);
const connection = { host: place.hostname, port: Number(place.port), maxRetriesPerRequest: null };

async function opened() {
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  return queue;
}

tally.main({
  prepare: tally.emptyRedis,
  one: async (jobs) => {
    const queue = await opened();
    await tally.timed(jobs, async () => {
      for (let number = 0; number < jobs; number++) await queue.add('nothing', { number }, OPTIONS);
    });
  },
  bulk: async (jobs) => {
    const queue = await opened();
    const add = (numbers) =>
      queue.addBulk(numbers.map((number) => ({ name: 'nothing', data: { number }, opts: OPTIONS })));
    await tally.timed(jobs, () => tally.inChunks(jobs, 1000, add));
  },
  pace: async (jobs, gapMs) => {
    const queue = await opened();
    await tally.pace((sent) => queue.add('timed', { sent }, OPTIONS), jobs, gapMs);
  },
  crash: async () => {
    const queue = await opened();
    await queue.add('sleepy', {}, OPTIONS);
  },
  work: async () => {
    const handle = async (job) => {
      if (job.name === 'nothing') tally.called();
      else if (job.name === 'timed') tally.delayed(job.data.sent);
      else await tally.sleepy();
    };
    new Worker('bench', handle, { connection, concurrency: tally.SLOTS }).on('error', console.error);
  },
});
