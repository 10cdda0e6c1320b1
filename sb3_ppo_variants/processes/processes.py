"""The interface of the processes that train together."""

from typing import TypeVar

import torch as th

Content = TypeVar("Content")


class Processes:
    """A process that trains alone, so that there is nothing to communicate."""

    rank: int = 0
    """The rank of this process."""
    size: int = 1
    """The number of processes."""

    def average(self, tensor: th.Tensor) -> None:
        """Replace a tensor with its mean over the processes.

        :raises ProcessError: if a process has ended, as in all methods that communicate
        """

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        """Return the tensors of all processes, stacked in the order of their ranks."""
        return tensor[None]

    def exchange(self, what: str, content: Content) -> list[Content]:
        """Return the contents that all processes pass, in the order of their ranks.

        :param what: what this process is doing, such as "writes a checkpoint"; must be the same in all processes
        :param content: the content from this process
        """
        return [content]

    def failed(self, error: BaseException) -> None:
        """Leave the group because of an error, and tell the other processes about it."""

    def mean(self, value: float) -> float:
        """Return the mean of a number over the processes."""
        if self.size == 1:
            return value
        number = th.tensor([value], dtype=th.float64)
        self.average(number)
        return number.item()


ALONE = Processes()
