"""Plan searches: pure maths that imports nothing of seerd or agent, reads no clock, does no I/O.

Policies:
seer                 SEER, Algorithms 1 to 3 as published
seer_capped          SEER with a limited number of GPUs, or on whole instances
remainder            uses what a plan leaves where whole instances are paid
wall_clock           rounds by the clock: the engine of the next four
random_search        Random
grid                 grid search
elastic_grid         E-Grid
elastic_hyperband    E-Hyperband
halving              SHA, and the engine of Hyperband
hyperband            Hyperband
rungs                rungs and promotions of ASHA
asha                 ASHA, and the engine of the next two
hypersched           HyperSched
bohb                 BOHB, on Optuna's model
policy               the registry of all policies by their names

Problem and plan:
model                a problem and a view in, a plan out
protocol             what a policy is
memory               what a policy remembers: written, and read back
caching              caches: per problem, and of indexes that belong to a memory
parameter            one dimension of a search space: its values, and how likely they are
constraints          expressions that configurations have to satisfy
space                search spaces
draws                configurations at random, by number
unit                 configurations as points of the unit cube
trial_ids            ids of trials, and their order
ranking              the order of trials, best first
fixed_cluster        the size of a cluster that never changes

Forecasting:
stages               stages of work on whole instances
latency_sampling     how long the slowest of many takes, and all together
normal               the normal distribution
forecast             time and cost of a plan, as distributions
budget_margin        what a cloud takes beyond the ideal plan is set aside
allocations          GPUs that each stage could be given, and what they take
greedy               RubberBand's searches as published
dynamic_programming  the search that closes their gap
rubberband           the cheapest plan within a deadline, or the fastest within a cost

Measuring:
measure              the policy of `seerd profile`
fitting              from samples to laws and latencies
scaling              throughput by number of GPUs
profile              how long a job and a cloud take, as distributions
clouds               what is assumed of a cloud before anything was measured
"""
