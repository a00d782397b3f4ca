"""The only place that imports verl: its hooks, filled with the project's parts. Written against verl 0.9.1.

Which file is loaded where:

* `platform_cpu`: by verl itself at `import verl` (entry point group `verl.plugins`), in every process;
* `register`: by `actor_rollout_ref.model.external_lib`, in every process that builds a model config;
* `agent_loop`, `reward_manager`, `dataset`, `sampler`: by name from the configuration (`configs/train.yaml`);
* `runner`, which loads `trainer` and `advantage`: in the task runner's actor.
"""
