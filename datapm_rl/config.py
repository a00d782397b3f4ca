"""The project's own configuration keys, beside verl's. One dataclass per group; Hydra checks names and types.

`configs/train.yaml` puts these groups next to verl's `ppo_trainer`, and a recipe (`recipes/NAME.yaml`, chosen by
`+recipe=NAME`) sets both. `python -m datapm_rl.train +recipe=NAME --cfg job` prints the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore


@dataclass
class RunConfig:
    """Where a run lives. The same command with the same name resumes the run."""

    name: str = "run"
    """Name of the run: its directory is `dir/name`."""
    dir: str = "runs"
    """Parent directory of runs."""
    seed: int = 0
    """Seed of tasks, policy, prompt order and sampling."""
    fresh: bool = False
    """Move an existing run of the same name aside and start anew."""


@dataclass
class TasksConfig:
    """The questions: a task file of yours, or the builtin benchmark built with these sizes."""

    path: str | None = None
    """A task file (JSON lines, see README). None builds the builtin benchmark."""
    tables: list[str] | None = None
    """Builtin: names of the tables to use; None is all of them."""
    train: int = 3000
    """Builtin: number of training tasks."""
    heldout: int = 200
    """Builtin: number of held-out tasks (unseen questions on unseen file variants)."""
    unseen_tables: int = 50
    """Builtin: number of tasks over tables that training never shows."""
    validation_splits: list[str] = field(default_factory=lambda: ["heldout", "unseen_tables"])
    """Splits of the task file to validate on; the first one is the progress line's held-out accuracy."""


@dataclass
class PolicyConfig:
    """The policy: a Hugging Face folder of yours, or the small model the project builds and cold-starts."""

    path: str | None = None
    """A Hugging Face folder with a chat template. None builds the small policy."""
    sft_updates: int = 900
    """Small policy: supervised updates of the cold start."""
    sft_batch: int = 16
    """Small policy: demonstrations per update."""
    sft_demonstrations: int = 4000
    """Small policy: number of imperfect demonstrations."""


@dataclass
class AgentConfig:
    """The agent loop."""

    dialect: str = "deepanalyze"
    """How steps are written: deepanalyze, datamind or dsgym."""
    max_turns: int = 10
    """Turns of a trajectory, the answer included."""
    turn_tokens: int = 2048
    """Tokens of one turn."""
    turn_deadline_s: float = 1800.0
    """Seconds to wait for one turn of the rollout server; beyond them the trajectory is missing."""
    observation_chars: int = 2048
    """Characters of one observation; the middle is cut beyond them."""


@dataclass
class PrmConfig:
    """The process reward model and how its verdicts enter the reward."""

    verifier: str = "reference"
    """`reference` (knows each task's reference program), `none` (outcome only), or a class as `package.module:Class`"""
    beta: float = 0.5
    """Weight of the process reward, eq. 8: r = (1 - beta) * outcome + beta * mean(step scores)."""
    deadline_s: float = 120.0
    """Seconds for one verification, and for those outstanding when a trajectory ends."""
    tamper_policy: str = "clean_room"
    """For a step whose process has replaced functions of pandas, NumPy or builtins: mark, clean_room or zero."""
    max_missing_share: float = 0.5
    """Share of trajectories without a reward above which a step stops the run."""


@dataclass
class SandboxConfig:
    """The sandbox actor of each node and the limits of one step of the agent's code (docs/sandbox.md)."""

    wall_s: float = 30.0
    """Seconds of one execution."""
    cpu_s: float = 120.0
    """CPU seconds of one execution, all its processes together."""
    memory_mb: int = 2048
    """Megabytes of data of one process, and of memory of all processes of a step."""
    output_kb: int = 64
    """Kilobytes of printed text kept per execution."""
    processes: int = 64
    """Processes and threads of one execution."""
    file_mb: int = 64
    """Megabytes of one written file."""
    workspace_mb: int = 512
    """Megabytes of all files of a workspace."""
    workspace_files: int = 10_000
    """Files and folders of a workspace."""
    cores: int = 2
    """Executions that run at the same time on a node."""
    preload: list[str] = field(default_factory=lambda: ["numpy", "pandas"])
    """Modules imported once and shared by all sessions."""
    keep: str = "all"
    """States that keep a process to branch from: last, all, lru (with max_snapshots)."""
    max_snapshots: int = 512
    """Kept states of all sessions of a node, with keep=lru."""
    min_level: int = 2
    """Isolation level (0 to 4) below which a run refuses to start."""
    max_level: int = 4
    """Isolation level above which nothing is tried."""
    read_only: list[str] = field(default_factory=list)
    """Paths that the agents' code may read beside the interpreter and its data."""
    recycle_after: int = 1000
    """Sessions after which new ones are forked from a fresh zygote."""
    lease_s: float = 600.0
    """Seconds until a session that nobody touches is closed; a later step rebuilds it."""


@dataclass
class OwnConfig:
    """All own groups, at the top level of the configuration."""

    run: RunConfig = field(default_factory=RunConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    prm: PrmConfig = field(default_factory=PrmConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)


def register_schema() -> None:
    """Make the dataclasses above known to Hydra as `datapm_rl_schema`."""
    ConfigStore.instance().store(name="datapm_rl_schema", node=OwnConfig)
