"""Classes of text models that transformers has only as a part of a multimodal class, for the fixtures. Needs torch and transformers.

Importing this module registers them: AutoModelForCausalLM makes them of the config of the text model.
"""
import torch
import transformers
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer import modeling_muse_glimmer as muse_glimmer


class MuseGlimmerForCausalLM(muse_glimmer.MuseGlimmerPreTrainedModel):
    """The text model and the head of MuseGlimmerForConditionalGeneration; the fixture muse_glimmer-mm is of that class."""
    config_class = muse_glimmer.MuseGlimmerTextConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = muse_glimmer.MuseGlimmerTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, **kwargs):
        cap = self.config.final_logit_softcapping
        logits = self.lm_head(self.model(input_ids, **kwargs).last_hidden_state) * self.config.output_multiplier
        return CausalLMOutputWithPast(logits=torch.tanh(logits / cap) * cap)


transformers.AutoModelForCausalLM.register(muse_glimmer.MuseGlimmerTextConfig, MuseGlimmerForCausalLM, exist_ok=True)
