"""Our policies and backends inside other people's engines; nothing of theirs is imported before it is asked for."""

from framework_engines.libcachesim import as_libcachesim as as_libcachesim
from framework_engines.sglang import as_sglang as as_sglang
from framework_engines.sglang import one_page_nodes as one_page_nodes
from framework_engines.transformers import register_transformers as register_transformers
from framework_engines.vllm import as_vllm as as_vllm
