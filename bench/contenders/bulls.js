// What Bull and BullMQ have in common: how jobs are enqueued. `opened` gives a queue; `work` is each one's own.
'use strict';
const tally = require('./tally.js');

const REMOVED = tally.DEFAULTS ? {} : { removeOnComplete: true, removeOnFail: true };
const OPTIONS = tally.FAILS ? { ...REMOVED, attempts: 1000 } : REMOVED;

exports.main = (opened, work) =>
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
      const job = (number) => ({ name: 'nothing', data: { number, ...tally.MORE }, opts: OPTIONS });
      const add = (numbers) => queue.addBulk(numbers.map(job));
      await tally.timed(jobs, () => tally.inChunks(jobs, tally.MORE.data ? 100 : 1000, add));
    },
    pace: async (jobs, gapMs) => {
      const queue = await opened();
      await tally.pace((sent) => queue.add('timed', { sent }, OPTIONS), jobs, gapMs);
    },
    crash: async () => {
      const queue = await opened();
      await queue.add('sleepy', {}, OPTIONS);
    },
    work,
  });
