// Bull 4: BENCH_SLOTS jobs at once in one process, finished jobs removed.
'use strict';
const Bull = require('bull');
const bulls = require('./bulls.js');
const tally = require('./tally.js');

async function opened() {
  const queue = new Bull('bench', tally.URL);
  await queue.isReady();
  return queue;
}

bulls.main(opened, async () => {
  const queue = await opened();
  queue.process('nothing', tally.SLOTS, async () => tally.called());
  queue.process('timed', 1, async (job) => tally.delayed(job.data.sent));
  queue.process('sleepy', 1, tally.sleepy);
});
