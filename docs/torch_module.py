import torch
from torch import nn


class Network(nn.Module):
    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        (V, m), (h, inputs) = state["C.weight"].shape, state["H.weight"].shape
        self.C, self.H, self.U = nn.Embedding(V, m), nn.Linear(inputs, h), nn.Linear(h, V)
        self.W = nn.Linear(inputs, V, bias=False) if "W.weight" in state else None
        self.load_state_dict(state)

    def forward(self, contexts: torch.Tensor) -> torch.Tensor:
        """Natural log probabilities (K, V) after contexts (K, n-1)."""
        x = (self.C(contexts.clamp(min=0)) * (contexts >= 0).unsqueeze(-1)).flatten(1)
        y = self.U(torch.tanh(self.H(x)))
        return torch.log_softmax(y if self.W is None else y + self.W(x), dim=-1)


def load(path: str) -> Network:
    return Network(torch.load(path, weights_only=True))
