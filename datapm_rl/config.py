"""The project's own configuration keys, beside verl's. One dataclass per group; Hydra checks names and types.

`configs/train.yaml` puts these groups next to verl's `ppo_trainer`, and a recipe (`recipes/NAME.yaml`, chosen by
`+recipe=NAME`) sets both. `python -m datapm_rl.train +recipe=NAME --cfg job` prints the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore

STAND_IN = "stand_in"
"""Value of `prm.model` that asks for a model of the project's whose verdicts mean nothing (CPU twins of recipes)."""


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
    """A task file (JSON lines, or tasks.parquet of `python -m datapm_rl.data`). None builds the builtin benchmark."""
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
    evaluation: list[str] = field(default_factory=list)
    """Evaluation sets: task files or prepared folders to validate on as a whole, with which training may share no data
    file and no question. Reported by the name of the folder (`DABENCH/tasks.parquet`) or of the file."""


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
    group_deadline_s: float = 3600.0
    """Seconds for a group, from its start: a member that is not ready by then is missing, the others are trained on."""
    refills: int = 1
    """How often a member whose reward is missing is sampled again."""
    quarantine_after: int = 3
    """Groups of one task with fewer than two scored members after which the task is not sampled any more."""


@dataclass
class PrmConfig:
    """The process reward model (docs/verifier.md) and how its verdicts enter the reward."""

    verifier: str = "reference"
    """`generative` (DataPRM), `self_reward` (the same by the policy itself), `judge`, `thinkprm`, `genprm`,
    `discriminative`, `reference` (knows each task's reference program), `none` (outcome only), or a class of yours as
    `package.module:Class`."""
    beta: float = 0.5
    """Weight of the process reward, eq. 8: r = (1 - beta) * outcome + beta * mean(step scores)."""
    verify_answers: bool = True
    """Whether final answers are verified in training. Eq. 10 replaces their score, so no reward depends on it: false
    saves one verification per trajectory and gives up `reward/override_rate` and `verifier/outcome_agreement`."""
    credit: str = "trajectory"
    """What an advantage belongs to: `trajectory` (eq. 9, the paper) or `step` (reward-to-go of the step scores)."""
    endpoint: str | None = None
    """Who serves the model: OpenAI-compatible addresses (http://host:port/v1, several with commas), or `pool` (verl's
    reward_model pool). None takes OPENAI_BASE_URL. The key is OPENAI_API_KEY. Not for discriminative, nor, in
    training, for self_reward."""
    model: str | None = None
    """The model's name at the endpoint; None takes the one it lists. discriminative, pool: a Hugging Face folder;
    pool: or `stand_in`, a tiny model that runs a fixed piece of code and gives a fixed verdict."""
    rounds: int = 10
    """Rounds K of one verification (eq. 4): replies of the verifier, the last one with the verdict."""
    environment: bool = True
    """Whether the verifier's code runs. False: Table 3 without Env."""
    multi_turn: bool = True
    """False: one piece of code, then the verdict; without environment, the verdict at once. Table 3 without Multi."""
    scores: str = "ternary"
    """`ternary` {0, 0.5, 1} or `binary` {0, 1}: Table 3 without Refl."""
    tools: list[str] = field(default_factory=lambda: ["query_document"])
    """Tools that the verifier's code may call: query_document, query_image (docs/verifier.md, "Tools")."""
    temperature: float = 0.7
    """Sampling temperature of the verifier."""
    top_p: float = 0.9
    """Nucleus of the verifier's sampling."""
    top_k: int = 20
    """Candidates of the verifier's sampling; -1 is all."""
    max_tokens: int = 8192
    """Tokens of one reply."""
    context_tokens: int = 32768
    """The model's context; a longer prompt is shortened, oldest observations first."""
    tokenizer: str | None = None
    """Folder of the verifier's tokenizer, to count tokens; None estimates from characters."""
    concurrency: int = 32
    """Verifications that run at the same time in one reward worker."""
    deadline_s: float = 120.0
    """Seconds for one verification, its wait for a turn not counted."""
    trajectory_deadline_s: float = 600.0
    """Seconds for the verifications that are outstanding when a trajectory ends; later ones are missing."""
    tamper_policy: str = "clean_room"
    """For a step whose process has replaced functions of pandas, NumPy or builtins: mark, clean_room or zero."""
    max_missing_share: float = 0.5
    """Share of trajectories without a reward above which a step stops the run."""
    gate_report: str | None = None
    """Summary of `python -m datapm_rl.evaluate prm` for this verifier; needed when a minimum below is set."""
    min_kappa: float | None = None
    """Quadratic weighted kappa of the gate below which training refuses to start."""
    min_silent_recall: float | None = None
    """Share of silent errors found by the gate below which training refuses to start."""


@dataclass
class OverlongConfig:
    """What a trajectory that fills its budget of tokens is worth (DAPO, section 3.4)."""

    policy: str = "none"
    """`none`; `mask`: cut off by the token budget means not trained on; `shape`: a penalty that grows in the buffer."""
    buffer_tokens: int = 1024
    """shape: tokens before data.max_response_length over which the penalty grows from 0 to `penalty`."""
    penalty: float = 1.0
    """shape: largest deduction from r_total."""


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
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)


def register_schema() -> None:
    """Make the dataclasses above known to Hydra as `datapm_rl_schema`."""
    ConfigStore.instance().store(name="datapm_rl_schema", node=OwnConfig)
