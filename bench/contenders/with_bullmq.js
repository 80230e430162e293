// BullMQ: BENCH_SLOTS jobs at once in one process, finished jobs removed; by default one at a time, and they are kept.
'use strict';
const IORedis = require('ioredis');
const { Queue, Worker } = require('bullmq');
const bulls = require('./bulls.js');
const tally = require('./tally.js');

const connection = new (IORedis.default || IORedis)(tally.URL, { maxRetriesPerRequest: null });

async function opened() {
  if (tally.QUEUES) return spread();
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  return queue;
}

// Jobs in turn for all queues; a bulk call fills one queue.
function spread() {
  const queues = tally.queues().map((name) => new Queue(name, { connection }));
  const addBulk = (jobs) =>
    Promise.all(queues.map((queue, place) => queue.addBulk(jobs.filter((_, n) => n % queues.length === place))));
  return { addBulk };
}

bulls.main(opened, async () => {
  const handle = async (job) => {
    if (job.name === 'nothing') await tally.handled();
    else if (job.name === 'timed') {
      tally.delayed(job.data.sent);
      await tally.sleep(tally.TIMED_MS);
    } else await tally.sleepy();
  };
  const concurrency = tally.DEFAULTS ? 1 : tally.SLOTS;
  for (const name of tally.QUEUES ? tally.queues() : ['bench'])
    new Worker(name, handle, { connection, concurrency }).on('error', console.error);
});
