"""Folders of small language models as Optimum and ONNX Runtime GenAI's model builder write them, and their texts.

A program for a Python that has these packages (test_served_folders.py says which):

    other_builders.py make OUT NAME...     folders OUT/NAME, for the names of FOLDERS
    other_builders.py store OUT NAME...    the same of smaller models, without files of tokenizers: tests/fixtures/served
    other_builders.py generate QUESTIONS   a JSON list of {"folder", "prompts", "tokens", "adapters": {name: file}}; prints
                                           {"": [...], name: [...]} for each: the greedy tokens of GenAI's generator
"""

import json
import runpy
import sys
import tempfile
from pathlib import Path

TOKENS, WIDTH, HEADS, PLACES = 320, 32, 2, 128
DECODER = dict(vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS,
               num_key_value_heads=1, max_position_embeddings=PLACES, bos_token_id=0, eos_token_id=1, pad_token_id=1)  # fmt: skip


def config_of(name, **small):
    import transformers as t

    if name == "gpt2":
        gpt2 = dict(vocab_size=TOKENS, n_positions=PLACES, n_embd=WIDTH, n_layer=2, n_head=HEADS, bos_token_id=0, eos_token_id=1)
        return t.GPT2Config(**gpt2 | small)
    kinds = {"llama": t.LlamaConfig, "qwen2": t.Qwen2Config, "qwen3": t.Qwen3Config, "phi": t.PhiConfig, "phi3": t.Phi3Config,
             "mistral": t.MistralConfig, "gemma": t.GemmaConfig}  # fmt: skip
    factors = [1 + 0.1 * i for i in range(WIDTH // HEADS // 2)]
    more = {
        "llama_heads": dict(num_key_value_heads=HEADS),
        "qwen2": dict(tie_word_embeddings=True),
        "qwen3": dict(head_dim=16),
        "phi": dict(num_key_value_heads=HEADS, partial_rotary_factor=1.0),
        "phi3": dict(original_max_position_embeddings=PLACES),
        "phi3_long": dict(original_max_position_embeddings=PLACES // 2,
                          rope_scaling={"type": "longrope", "short_factor": factors, "long_factor": factors}),
        "gemma": dict(head_dim=16),
    }  # fmt: skip
    return kinds[name.split("_")[0]](**DECODER | more.get(name, {}) | small)


def tokenizer():
    """A small BPE of bytes."""
    import tokenizers as t
    import transformers

    made = t.Tokenizer(t.models.BPE())
    made.pre_tokenizer, made.decoder = t.pre_tokenizers.ByteLevel(add_prefix_space=False), t.decoders.ByteLevel()
    text = Path(__file__).parents[3] / "models" / "data" / "devils_dictionary.txt"
    trainer = t.trainers.BpeTrainer(vocab_size=TOKENS, special_tokens=["<s>", "</s>"], show_progress=False,
                                    initial_alphabet=t.pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    made.train([str(text)], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def save_model(name, folder, **small):
    """What from_pretrained reads, with weights of a fresh model that are large enough for its answers to differ."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_of(name, **small))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def genai(model, out, precision, provider="cpu", **options):
    """python -m onnxruntime_genai.models.builder -i MODEL -o OUT -p PRECISION -e PROVIDER -c CACHE --extra_options ..."""
    import onnxruntime_genai

    builder = Path(onnxruntime_genai.__file__).parent / "models" / "builder.py"
    if " accuracy_level =" not in builder.read_text():  # the names before 0.12
        options = {f"int4_{key}": value for key, value in options.items()}
    sys.argv = [str(builder), "-i", str(model), "-o", str(out), "-p", precision, "-e", provider, "-c", str(model / "cache")]
    sys.argv += ["--extra_options", *(f"{key}={value}" for key, value in options.items())] if options else []
    sys.path.insert(0, str(builder.parent))
    runpy.run_path(str(builder), run_name="__main__")


def optimum(model, out, task="text-generation-with-past", **options):
    from optimum.exporters.onnx import main_export

    main_export(str(model), str(out), task=task, do_validation=False, **options)


def merged(model, out):
    """Optimum's older form: two decoders, and both in an If."""
    from optimum.exporters.onnx import export
    from optimum.exporters.tasks import TasksManager
    from optimum.onnx import merge_decoders
    from transformers import AutoModelForCausalLM

    optimum(model, out)
    whole = AutoModelForCausalLM.from_pretrained(model)
    make = TasksManager.get_exporter_config_constructor("onnx", whole, task="text-generation")
    paths = []
    for name, past in (("decoder_model", False), ("decoder_with_past_model", True)):
        paths.append(out / f"{name}.onnx")
        export(whole, make(whole.config, use_past=True, use_past_in_inputs=past), paths[-1])
    merge_decoders(*paths, save_path=out / "decoder_model_merged.onnx")
    for path in [*paths, out / "model.onnx"]:
        path.unlink()


INT4 = dict(precision="int4", block_size=32, accuracy_level=1)
FOLDERS = {
    "genai_llama": ("llama", genai, dict(precision="fp32")),
    "genai_llama_int4": ("llama", genai, INT4),
    "genai_llama_rounded": ("llama", genai, dict(precision="int4", block_size=32)),  # what products read, to 8 bits
    "genai_llama_int8": ("llama", genai, dict(precision="int8", accuracy_level=1)),
    "genai_llama_fp16": ("llama", genai, dict(precision="fp16", provider="cuda")),
    "genai_llama_dml": ("llama", genai, dict(precision="fp16", provider="dml")),
    "genai_llama_webgpu": ("llama", genai, dict(precision="int4", provider="webgpu", block_size=32, accuracy_level=1)),
    "genai_qwen2": ("qwen2", genai, dict(precision="fp32")),
    "genai_qwen2_int4": ("qwen2", genai, INT4),
    "genai_qwen3": ("qwen3", genai, dict(precision="fp32")),
    "genai_phi3": ("phi3", genai, dict(precision="fp32")),
    "genai_phi3_int4": ("phi3", genai, INT4),
    "genai_phi3_long": ("phi3_long", genai, dict(precision="fp32")),
    "genai_phi": ("phi", genai, dict(precision="fp32")),
    "genai_gemma": ("gemma", genai, dict(precision="fp32")),
    "genai_llama_heads": ("llama_heads", genai, dict(precision="fp16")),
    "genai_mistral": ("mistral", genai, dict(precision="fp32")),
    "optimum_llama": ("llama", optimum, {}),
    "optimum_llama_plain": ("llama", optimum, dict(task="text-generation")),
    "optimum_llama_merged": ("llama", merged, {}),
    "optimum_qwen2": ("qwen2", optimum, {}),
    "optimum_qwen3": ("qwen3", optimum, {}),
    "optimum_phi3": ("phi3", optimum, {}),
    "optimum_mistral": ("mistral", optimum, {}),
    "optimum_gpt2": ("gpt2", optimum, {}),
    "optimum_gpt2_plain": ("gpt2", optimum, dict(task="text-generation")),
    "optimum_gpt2_merged": ("gpt2", merged, {}),
    "optimum_gpt2_o2": ("gpt2", optimum, dict(optimize="O2")),
    "optimum_llama_o2": ("llama", optimum, dict(optimize="O2")),
}


def make(out, names, **small):
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as models:
        for name in names:
            model, write, options = FOLDERS[name]
            folder = Path(models) / model
            if not folder.exists():
                save_model(model, folder, **small)
            target = Path(out) / name
            target.mkdir(parents=True)
            try:
                write(folder, target, **options)
            except (Exception, SystemExit) as error:
                (target / "error.txt").write_text(f"{type(error).__name__}: {error}")
                if len(names) == 1:
                    raise


def store(out, names):
    make(out, names, vocab_size=64, num_hidden_layers=1)
    for path in Path(out).rglob("*"):
        if path.name.startswith(("tokenizer", "special_tokens")):
            path.unlink()


def generate(questions):
    import onnxruntime_genai as og

    answers = []
    for question in questions:
        model = og.Model(question["folder"])
        adapters = og.Adapters(model)
        for name, file in question["adapters"].items():
            adapters.load(file, name)
        answer = {}
        for name in ["", *question["adapters"]]:
            texts = []
            for prompt in question["prompts"]:
                parameters = og.GeneratorParams(model)
                parameters.set_search_options(max_length=len(prompt) + question["tokens"], min_length=len(prompt) + question["tokens"],
                                              do_sample=False)  # fmt: skip
                generator = og.Generator(model, parameters)
                if name:
                    generator.set_active_adapter(adapters, name)
                generator.append_tokens(prompt)
                for _ in range(question["tokens"]):
                    generator.generate_next_token()
                texts.append([int(token) for token in generator.get_sequence(0)[len(prompt) :]])
            answer[name] = texts
        answers.append(answer)
    print(json.dumps(answers))


if __name__ == "__main__":
    if sys.argv[1] in ("make", "store"):
        {"make": make, "store": store}[sys.argv[1]](sys.argv[2], sys.argv[3:])
    else:
        generate(json.loads(sys.argv[2]))
