// A worker in JavaScript: leases jobs over the dashboard's JSON API, renews the leases while it works, settles each.
// Start the dashboard (`holdfast dashboard -u sqlite:///jobs.db`), then `node worker.mjs mail`. Needs Node 18 or newer.
//   HOLDFAST_API: where the dashboard is; HOLDFAST_PASSWORD: its password, if it has one; HOLDFAST_DRAIN=1: stop when
//   there is nothing left to do.

const api = process.env.HOLDFAST_API ?? "http://127.0.0.1:8642";
const queues = process.argv.slice(2);
const wait = process.env.HOLDFAST_DRAIN ? 0 : 10;
let stopping = false;
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => (stopping = true));

// One function per task. It gets the arguments by name, and a signal that tells it when to stop.
const handlers = {
  "mail.send": async ({ to }, signal) => {
    if (!to.includes("@")) throw new Error(`${to} is no address`);
    return `sent to ${to}`;
  },
};

async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (process.env.HOLDFAST_PASSWORD) headers.Authorization = `Bearer ${process.env.HOLDFAST_PASSWORD}`;
  const answer = await fetch(`${api}/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  const json = await answer.json();
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${json.error}`);
  return json;
}

async function run(job, signal) {
  const named = { id: job.id, token: job.token };
  const handler = handlers[job.task];
  if (!handler) return { ...named, outcome: "release" };
  try {
    return { ...named, outcome: "succeed", value: (await handler(job.args, signal)) ?? null };
  } catch (error) {
    return { ...named, outcome: "fail", error: String(error) }; // spends a retry
  }
}

async function work() {
  const { renew_every, jobs, ...me } = await post("lease", { queues, most: 10, lease: 30, wait, name: "node" });
  if (!jobs.length) return false; // me: worker and secret, which every further call sends
  const held = new Map(jobs.map((job) => [job.id, { job, stop: new AbortController() }]));
  const renewing = setInterval(async () => {
    const leases = [...held.values()].map(({ job }) => ({ id: job.id, token: job.token }));
    const { lost, cancelled } = await post("renew", { ...me, leases }).catch(() => ({ lost: [], cancelled: [] }));
    for (const id of [...lost, ...cancelled]) held.get(id)?.stop.abort(); // lost: somebody else may run it now
  }, renew_every * 1000);
  try {
    await Promise.all([...held.values()].map(async ({ job, stop }) => {
      const outcome = await run(job, stop.signal);
      const { answers } = await post("settle", { ...me, outcomes: [outcome] });
      held.delete(job.id);
      console.log(`${job.task} ${job.id} ${outcome.outcome}: ${answers[0].answer}`);
    }));
  } finally {
    clearInterval(renewing);
    await post("leave", me); // gives back what was not settled
  }
  return true;
}

while (!stopping) if (!(await work()) && !wait) break;
