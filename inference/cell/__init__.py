"""One cell's state in Redis: admission, queue, event streams and workers. Knows no Django."""
