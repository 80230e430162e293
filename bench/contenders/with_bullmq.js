// BullMQ: BENCH_SLOTS jobs at once in one process, finished jobs removed.
'use strict';
const { Queue, Worker } = require('bullmq');
const bulls = require('./bulls.js');
const tally = require('./tally.js');

const place = new URL(tally.URL);
const connection = { host: place.hostname, port: Number(place.port), maxRetriesPerRequest: null };

async function opened() {
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  return queue;
}

bulls.main(opened, async () => {
  const handle = async (job) => {
    if (job.name === 'nothing') tally.called();
    else if (job.name === 'timed') tally.delayed(job.data.sent);
    else await tally.sleepy();
  };
  new Worker('bench', handle, { connection, concurrency: tally.SLOTS }).on('error', console.error);
});
