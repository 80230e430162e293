"""Read by type checkers without their strict flags: an untyped first parameter is unchecked, not wrong."""

from holdfast import Context, Holdfast

app = Holdfast("memory://")


@app.task
def bare(ctx, to):
    return to


@app.task(queue="sums")
def add(a, b):
    return a + b


@app.task
async def fetch(url):
    return url


@app.task
def with_context(ctx: Context, to):
    return to


bare.enqueue("ann")
bare.enqueue("ann", 1)
add.enqueue(1, 2)
fetch.enqueue("u")
with_context.enqueue("ann")
