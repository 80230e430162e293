// pg-boss 12: batches of PGBOSS_BATCH, the next batch at once when one was full, LISTEN/NOTIFY; grouped: one at a time.
'use strict';
const module_ = require('pg-boss');
const tally = require('./tally.js');

const PgBoss = module_.PgBoss || module_.default || module_;
// A batch holds one job of a group: it must not be larger than the groups are many, or it never counts as full.
const BATCH = process.env.BENCH_GROUPS ? 100 : Number(process.env.PGBOSS_BATCH || 1000);
const QUIET = { supervise: false, schedule: false };

async function opened(more = {}) {
  const boss = new PgBoss({ connectionString: tally.URL, max: 10, useListenNotify: true, ...more });
  boss.on('error', console.error);
  await boss.start();
  for (const name of ['nothing', 'timed', 'sleepy']) {
    if (!(await boss.getQueue(name))) await boss.createQueue(name, { name, retryLimit: 3, notify: true });
  }
  return boss;
}

const grouped = (shape, number, jobs) => {
  const id = tally.groupOf(shape, number, jobs);
  return id === null ? {} : { group: { id } };
};

tally.main({
  prepare: async () => {
    await (await opened(QUIET)).stop({ graceful: false });
  },
  one: async (jobs) => {
    const boss = await opened(QUIET);
    await tally.timed(jobs, async () => {
      for (let number = 0; number < jobs; number++) await boss.send('nothing', { number });
    });
  },
  bulk: async (jobs, shape) => {
    const boss = await opened(QUIET);
    const add = (numbers) =>
      boss.insert('nothing', numbers.map((number) => ({ data: { number }, ...grouped(shape, number, jobs) })));
    await tally.timed(jobs, () => tally.inChunks(jobs, 1000, add));
  },
  pace: async (jobs, gapMs) => {
    const boss = await opened(QUIET);
    await tally.pace((sent) => boss.send('timed', { sent }), jobs, gapMs);
  },
  crash: async () => {
    await (await opened(QUIET)).send('sleepy', {});
  },
  work: async () => {
    const boss = await opened();
    const options = { batchSize: BATCH, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
    if (process.env.BENCH_GROUPS) options.groupConcurrency = 1;
    await boss.work('nothing', options, async (jobs) => jobs.forEach(() => tally.called()));
    await boss.work('timed', { batchSize: 100, pollingIntervalSeconds: 0.5 }, async (jobs) =>
      jobs.forEach((job) => tally.delayed(job.data.sent)));
    await boss.work('sleepy', { pollingIntervalSeconds: 0.5 }, tally.sleepy);
  },
});
