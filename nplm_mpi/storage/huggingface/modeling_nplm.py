"""Models of nplm_mpi for Hugging Face's transformers; loaded with ``trust_remote_code=True``.

The letters are those of Bengio et al. (2003): C word features, H and d the hidden layer, U, W and b the
output layer, v the energies' weights; the deep network has H1, d1, H2, ... and a projection P, q.  Every
position of a text predicts the word after it from itself and the n-2 words before; what is before a sentence
is <s>, or nothing.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": lambda u: nn.functional.gelu(u, approximate="tanh"),
}
# Hidden units of all candidate words that the energy model computes at a time.
TOGETHER = 1 << 24


class NplmConfig(PretrainedConfig):
    """What config.json holds: the kind of model, its sizes, and the shapes of its arrays."""

    model_type = "nplm"

    def __init__(self, **kwargs: Any) -> None:
        self.kind = kwargs.pop("kind", "")
        self.order = kwargs.pop("order", 2)
        self.shapes = kwargs.pop("shapes", {})
        self.slots = kwargs.pop("slots", [])
        self.layers = kwargs.pop("layers", 1)
        self.activation = kwargs.pop("activation", "tanh")
        self.sentences = kwargs.pop("sentences", False)
        self.vocab_size = kwargs.pop("vocab_size", 0)
        kwargs["use_cache"] = False  # a position looks back n-1 words: there is nothing to keep
        super().__init__(**kwargs)


class NplmForCausalLM(PreTrainedModel, GenerationMixin):
    """y of every word at every position; their softmax is P."""

    config_class = NplmConfig
    main_input_name = "input_ids"

    def __init__(self, config: NplmConfig) -> None:
        super().__init__(config)
        for name, shape in config.shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing is drawn anew: all arrays are in the folder."""

    def get_input_embeddings(self) -> Any:
        """None: features are looked up for places that hold nothing, too."""
        return None

    def contexts(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The n-1 words before each next word, the nearest first: (B, T, n-1), -1 for nothing."""
        words, config = self.config.order - 1, self.config
        ids = input_ids if attention_mask is None else input_ids.masked_fill(attention_mask == 0, -1)
        padded = nn.functional.pad(ids, (words - 1, 0), value=-1)
        found = padded.unfold(1, words, 1).flip(-1)
        if config.sentences:
            # From the nearest boundary on, and where nothing is, a context is the beginning of a sentence.
            ends = (found == config.bos_token_id) | (found == config.eos_token_id) | (found < 0)
            found = found.masked_fill(ends.long().cumsum(-1) > 0, config.bos_token_id)
        return found

    def features(self, contexts: Tensor) -> Tensor:
        """C of each place of contexts (K, n-1); zeros where there is nothing."""
        return self.C[contexts.clamp(min=0)] * (contexts >= 0).unsqueeze(-1).to(self.C.dtype)

    def network(self, contexts: Tensor) -> Tensor:
        """b + U tanh(d + H x) + W x."""
        x = self.features(contexts).flatten(1)
        y = self.b + torch.tanh(self.d + x @ self.H.T) @ self.U.T
        return y + x @ self.W.T if "W" in self.config.shapes else y

    def energy(self, contexts: Tensor) -> Tensor:
        """-(v tanh(d + H (C(i), x)) + b_i), for every word i."""
        m = self.C.shape[1]
        of_words = self.C @ self.H[:, :m].T
        of_contexts = self.d + self.features(contexts).flatten(1) @ self.H[:, m:].T
        rows = max(1, TOGETHER // of_words.numel())
        parts = []
        for some in of_contexts.split(rows):
            a = torch.tanh(of_words + some.unsqueeze(1))
            parts.append(-((a * self.v).sum(-1) + self.b))
        return torch.cat(parts)

    def deep(self, contexts: Tensor) -> Tensor:
        """Slots of features, hidden layers with residual connections, perhaps a projection, b + U f."""
        features, bounds = self.features(contexts), pairwise(self.config.slots)
        x = torch.cat([features[:, a:b].sum(1) / (b - a) ** 0.5 for a, b in bounds], dim=1)
        for number in range(1, self.config.layers + 1):
            u = getattr(self, f"d{number}") + x @ getattr(self, f"H{number}").T
            if f"gain{number}" in self.config.shapes:
                gain, shift = getattr(self, f"gain{number}"), getattr(self, f"shift{number}")
                u = nn.functional.layer_norm(u, u.shape[-1:], gain, shift, 1e-5)
            a = ACTIVATIONS[self.config.activation](u)
            x = a if number == 1 else x + a
        if "P" in self.config.shapes:
            x = self.q + x @ self.P.T
        return self.b + x @ (self.U if "U" in self.config.shapes else self.C).T

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits (B, T, V), and the mean loss where labels (as input_ids; -100 for none) are given."""
        contexts = self.contexts(input_ids, attention_mask)
        y = getattr(self, self.config.kind)(contexts.flatten(0, 1)).unflatten(0, input_ids.shape)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(y[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        if return_dict is False:
            return (y,) if loss is None else (loss, y)
        return CausalLMOutput(loss=loss, logits=y)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """All of the text so far: it is looked at anew for each word."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}
