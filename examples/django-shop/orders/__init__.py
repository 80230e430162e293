"""Orders of the shop: the model, two views and the jobs behind them."""
