"""Test set-up: eight simulated devices, and no silent promotion of dtypes or ranks.

Programs are compiled quickly, not for speed; `XLA_FLAGS= pytest` tests optimised code.
"""

import os

import hypothesis
import jax

QUICK = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):  # a flag that newer XLA does not have
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=30)
hypothesis.settings.register_profile("long", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
