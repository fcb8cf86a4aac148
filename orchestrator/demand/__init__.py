"""Models that are there on demand: started by the first request, unloaded when nobody uses them, and evicted when
another needs their room.

Pure: `groups` (who may not run beside whom), `keeping` (what keeps an engine loaded, and what it is worth), `room`
(who goes so that another can come), `idle` (when one has been idle for long enough). `unloading` empties an engine
without cutting a stream, `desk` watches the requests, `room_queue` carries the decisions about room out, `words` are
what people are told of it. None of it writes `desired`.
"""
