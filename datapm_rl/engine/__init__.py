"""The project's own rollout engine for CPU: transformers models, batched and KV-cached.

    CpuEngine (engine.py)       asyncio face: generate, update_weights, abort_all, resume, sleep, close
      DecodingThread (worker.py)  the one thread that owns what follows; everything from outside is a command to it
        Decoder (decoder.py)        rows of running requests; prefill and decoding step as one forward call
          KVStore (kv_store.py)       a row of keys and values per request; attention.py reads it in place
          PrefixCache                 parked rows of finished turns, found by content
          DrawPlan, StopMatcher       one token per row; when it ends a request
        WeightUpdate (weights.py)   new weights in place
    openai_server.py            chat endpoint over the engine

Left out, because tiny models on one machine do not need it: paging, prefix sharing between requests that run,
speculative decoding, chunked prefill, sliding-window or recurrent layers, beam search, penalties.
"""

from datapm_rl.engine.engine import CpuEngine
from datapm_rl.engine.sampling import Generation, Sampling

__all__ = ["CpuEngine", "Generation", "Sampling"]
