// What Bull and BullMQ have in common: how jobs are enqueued. `opened` gives a queue; `work` is each one's own.
'use strict';
const tally = require('./tally.js');

const OPTIONS = { removeOnComplete: true, removeOnFail: true };

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
    work,
  });
