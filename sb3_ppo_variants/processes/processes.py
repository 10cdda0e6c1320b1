"""What training knows of the processes that train together."""

from typing import TypeVar

import torch as th

Content = TypeVar("Content")


class Processes:
    """A process that trains alone, for which nothing is to be done."""

    rank: int = 0
    """The number of this process."""
    size: int = 1
    """How many processes there are."""

    def average(self, tensor: th.Tensor) -> None:
        """Replace a tensor by its mean over the processes.

        :raises ProcessError: if a process is gone; so do all other methods
        """

    def gather(self, tensor: th.Tensor) -> th.Tensor:
        """The tensors of all processes, stacked in the order of their ranks."""
        return tensor[None]

    def exchange(self, what: str, content: Content) -> list[Content]:
        """What each process hands over, in the order of their ranks.

        :param what: names the moment, which must be the same for all
        """
        return [content]

    def failed(self, error: BaseException) -> None:
        """Leave the other processes because of an error, and let them know."""

    def mean(self, value: float) -> float:
        """The mean of a number over the processes."""
        if self.size == 1:
            return value
        number = th.tensor([value], dtype=th.float64)
        self.average(number)
        return number.item()


ALONE = Processes()
