// GroupMQ: BENCH_SLOTS jobs at once in one process; without a shape every job is its own group. Bulk = autoBatch.
'use strict';
const module_ = require('ioredis');
const { Queue, Worker } = require('groupmq');
const tally = require('./tally.js');

const Redis = module_.default || module_;
const opened = (more = {}) =>
  new Queue({ redis: new Redis(tally.URL, { maxRetriesPerRequest: null }), namespace: 'bench', ...more });
const groupOf = (shape, number, jobs) => tally.groupOf(shape, number, jobs) || `g${number}`;

tally.main({
  prepare: tally.emptyRedis,
  one: async (jobs) => {
    const queue = opened();
    await tally.timed(jobs, async () => {
      for (let number = 0; number < jobs; number++) {
        await queue.add({ groupId: `g${number}`, data: { kind: 'nothing', number } });
      }
    });
  },
  bulk: async (jobs, shape) => {
    const queue = opened({ autoBatch: { size: 100, maxWaitMs: 5 } });
    const add = (number) => queue.add({ groupId: groupOf(shape, number, jobs), data: { kind: 'nothing', number } });
    await tally.timed(jobs, () => tally.inChunks(jobs, 2000, (numbers) => Promise.all(numbers.map(add))));
  },
  pace: async (jobs, gapMs) => {
    const queue = opened();
    const add = (sent) => queue.add({ groupId: `g${sent}`, data: { kind: 'timed', sent } });
    await tally.pace(add, jobs, gapMs);
  },
  crash: async () => {
    await opened().add({ groupId: 'g', data: { kind: 'sleepy' } });
  },
  work: async () => {
    const handler = async (job) => {
      if (job.data.kind === 'nothing') tally.called();
      else if (job.data.kind === 'timed') tally.delayed(job.data.sent);
      else await tally.sleepy();
    };
    const worker = new Worker({ queue: opened(), concurrency: tally.SLOTS, handler });
    worker.on('error', console.error);
    worker.run();
  },
});
