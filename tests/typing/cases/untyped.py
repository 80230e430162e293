"""Read by mypy without its strict flags: an untyped first parameter is unchecked, not wrong."""

from holdfast import Holdfast

app = Holdfast("memory://")


@app.task
def bare(ctx, to):
    return to


bare.enqueue("ann")
bare.enqueue("ann", 1)
