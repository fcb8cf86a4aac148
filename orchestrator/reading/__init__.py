"""Readers of model folders: config.json, safetensors headers, tokenizer.json. Bounded; they block.

What a file says is a claim of whoever made it. `opened` opens nothing but regular files that lie
inside the model's own folder; `strict_json` takes no more than it must; `config_shape`,
`config_quantisation` and `config_drafter` turn a configuration into facts and name the key that
makes no sense; `safetensors_file` and `tensors` read what the weights really hold; `tokenizer_file`
tells whether two models number their tokens alike; `folder` puts it together. GGUF has a reader
of its own, `orchestrator.gguf_file`, which gives the same facts.
"""
