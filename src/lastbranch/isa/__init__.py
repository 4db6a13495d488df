"""Instructions: branch kind, length and direct target, behind one interface (capstone decodes)."""

from .decoder import Decoder, Instruction, Instructions
from .kinds import ARCHITECTURES, NOT_A_BRANCH, UNDECODABLE

__all__ = ["ARCHITECTURES", "NOT_A_BRANCH", "UNDECODABLE", "Decoder", "Instruction", "Instructions"]
