"""A shop on FastAPI, SQLAlchemy and PostgreSQL: receipts by mail, webhooks with a rate, a group per tenant."""
