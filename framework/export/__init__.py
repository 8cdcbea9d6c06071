"""Our policies and backends inside other people's engines; nothing of theirs is imported before it is asked for."""

from framework.export.libcachesim import as_libcachesim as as_libcachesim
from framework.export.sglang import as_sglang as as_sglang
from framework.export.sglang import one_page_nodes as one_page_nodes
from framework.export.transformers import register_transformers as register_transformers
from framework.export.vllm import as_vllm as as_vllm
