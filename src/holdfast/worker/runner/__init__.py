"""The runner: one attempt as a straight pipeline, in this process or in a runner process."""
