// Bull 4: BENCH_SLOTS jobs at once in one process, finished jobs removed.
'use strict';
const Bull = require('bull');
const tally = require('./tally.js');

const OPTIONS = { removeOnComplete: true, removeOnFail: true };

async function opened() {
  const queue = new Bull('bench', tally.URL);
  await queue.isReady();
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
    const queue = await opened();
    queue.process('nothing', tally.SLOTS, async () => tally.called());
    queue.process('timed', 1, async (job) => tally.delayed(job.data.sent));
    queue.process('sleepy', 1, tally.sleepy);
  },
});
