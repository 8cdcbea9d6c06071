from framework.llm import LLM as LLM
from framework.sampling import Sampling as Sampling

__version__: str
