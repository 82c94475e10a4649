"""Tokenizers of the kinds that models have, trained on lines of many languages, and such lines."""

import base64
import json
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = """The quick brown fox jumps over the lazy dog, didn't it? I'll say we've SHOULD'VE 3.14159 won 1,234,567 $ -- "quoted" text's end...
Der Fuchs springt über den faulen Hund; Straße, Größe, Äpfel – „Zitat“ und 42 Übungen! ẞ
Le renard brun saute par-dessus le chien paresseux. L’été, c’est beau : œuvre, naïve, façade « guillemets » 100 €
El zorro marrón salta sobre el perro perezoso. ¿Qué tal? ¡Mañana será otro día! ñandú, pingüino
Быстрая коричневая лиса прыгает через ленивую собаку. Ёлка, съезд, №5 — «кавычки»
敏捷的棕色狐狸跳过了懒狗。你好，世界！今天是2024年5月17日，天气很好。「引號」繁體字
素早い茶色の狐がのろまな犬を飛び越える。カタカナ、ひらがな、ｶﾞｷﾞ ㍿ ①② テスト・データ
빠른 갈색 여우가 게으른 개를 뛰어넘는다. 안녕하세요 세계! 한국어 테스트 ㄱㄴㄷ 각
الثعلب البني السريع يقفز فوق الكلب الكسول. مرحبا بالعالم! ١٢٣٤ اَلْعَرَبِيَّةُ، ﷺ
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। नमस्ते दुनिया! १२३४ हिन्दी में
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ สวัสดีชาวโลก ๑๒๓
השועל החום המהיר קופץ מעל הכלב העצלן. שָׁלוֹם עולם! ״ציטוט״
Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. ΌΣΟΣ ΟΔΟΣ ἀρχή
Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng. Tiếng Việt có dấu: ắ ằ ẵ ặ Đà Nẵng
İstanbul'da ışık ve çığ ğüşöç IĞDIR ilişki
def f(x: int = 0) -> str:\\n    return f"{x!r:>10}"  # comment\\n\\n\\tif x != y and z[i+1] <= 0x1F: pass
#include <vector>\\nint main() { std::vector<int> v{1,2,3}; for (auto& x : v) x *= 2; return v.size() == 3 ? 0 : 1; }
SELECT * FROM t WHERE a LIKE '%b%' AND c >= 10; {"json": [1, 2.5e-3, null, true]} https://example.org/a?q=a%20b&c=d#e
😀😃 👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ ✨🚀 1️⃣ emoji🤖text 🏳️‍🌈 ☕︎
e\u0301 a\u030a \u1e9b\u0323 \ufb01 \u2126 \u212b \u00bd \u2460 x\u00b2 \uff21\uff22 \u200b\u200d\ufeff \u00a0\u3000\u2003 \u00ad"""
SENTENCES = SENTENCES.replace("\\n", "\n").replace("\\t", "\t").split("\n")

GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]  # fmt: skip
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# SentencePiece's compiled form of: ﬁ fi, ① 1, Ａ A, ½ 1⁄2, é e, e + U+0301 E, Å A, U+00A0 and U+3000 and tab a space, U+200B nothing, が か゛,
# か + U+3099 が, № No, ™ tm, 😀 :), ab X, 👍🏽 yes.
CHARSMAP = (
    "AAQAAAAgAAAJDQAAAQAAgGIdAAAVAACAzAgCAIEFAAAQAACAoCkAAAUAAICFBQAADgAAgBcAAICR+AIAiwUAAAAAAICWBQAAEgAAgBwAAICgHQAAAwAAgL1xAACAPAIAgR"
    "gCAIR4AgCAbQAAi4gDAOMYAgCAZAIAjPEAACoAAICCmAIAmfkAACMAAICsAAIAgRkAAKLZAAAZAACAqakAAJ8YAgChjQAAjcwDAPB4AgCfIAIAj/ACAL0NAAAfAACAgHkA"
    "AJFQAgALAACAvOwCADIAAAA1AAAANAAAADcAAAA2AAAAOQAAAJhYAgA7AAAAOgAAAD0AAAA8AAAAPwAAAD4AAABBAAAAQAAAAEMAAABCAAAARQAAAEQAAABHAAAARgAAAE"
    "kAAABIAAAASwAAAEoAAABNAAAATAAAAE8AAABOAAAAUQAAAFAAAABTAAAAUgAAAFUAAABUAAAAVwAAAFYAAABZAAAAWAAAAFsAAABaAAAAXQAAAFwAAABfAAAAXgAAAGEA"
    "AABgAAAAYwAAAGIAAABlAAAAZAAAAGcAAABmAAAAaQAAAGEgAABrAAAAagAAAG0AAABlkAIAbwAAAG4AAABxAAAAcAAAAHMAAAByAAAAdQAAAHQAAAB3AAAAdgAAAHkAAA"
    "B4AAAAewAAAHoAAAB9AAAAfAAAAH8AAAB+AAAAgQAAAIAAAACDAAAAggAAAIUAAACEAAAAhwAAAIYAAACJAAAAiAAAAIsAAACKAAAAjQAAAIwAAACPAAAAjgAAAJEAAACQ"
    "AAAAkwAAAJIAAACVAAAAlAAAAJcAAACWAAAAmQAAAJgAAACbAAAAmgAAAJ0AAACcAAAAnwAAAJ4AAAChAAAAoAAAAKMAAACiAAAApQAAAKQAAACnAAAApgAAAKkAAACoAA"
    "AAqwAAAKoAAACtAAAArAAAAK8AAACuAAAAsQAAALAAAACzAAAAsgAAALUAAAC0AAAAtwAAALYAAAC5AAAAuAAAALsAAAC6AAAAvQAAALwAAAC/AAAAvgAAAMEAAADAAAAA"
    "wwAAAMIAAADFAAAAxAAAAMcAAADGAAAAyQAAAMgAAADCiAEAwxABAM0AAADMAAAAzwAAAM4AAADRAAAA0AAAANMAAADSAAAA1QAAANQAAADXAAAA1gAAANkAAADYAAAA2w"
    "AAANoAAADdAAAA3AAAAN8AAADeAAAA4QAAAOAAAADjAAAA4gAAAOUAAADkAAAA5wAAAO+kAQDpAAAA6AAAAOLYAQDj9AEA7QAAAOwAAADvAAAA7gAAAPEAAADwAAAA8wAA"
    "APIAAAD1AAAA9AAAAPcAAAD2AAAA8AABAPgAAAD7AAAA+gAAAP0AAAD8AAAA/wAAAP4AAAAAIAAxADHigYQyADopAEEARQBObwBYAGUAZmkAdG0AeWVzAOOBi+OCmwDjgY"
    "wA"
)


def characters():
    """Of Unicode 8, whose classes of signs and accents Hugging Face's tokenizers know; those of later versions are another test's."""
    ranges = (0x20, 0x250), (0x370, 0x530), (0x5D0, 0x5EB), (0x620, 0x6D4), (0x904, 0x963), (0xE01, 0xE3B), (0x1E00, 0x2000), (0x2010, 0x2070), \
        (0x20A0, 0x20BF), (0x2100, 0x23FB), (0x2500, 0x2BBA), (0x3000, 0x3100), (0x4E00, 0x9FD6), (0xAC00, 0xD7A4), (0xFB00, 0xFB07), (0xFF01, 0xFF5F), \
        (0x1F300, 0x1F5A4), (0x1F600, 0x1F650)  # fmt: skip
    return [chr(code) for first, end in ranges for code in range(first, end) if unicodedata.category(chr(code)) != "Cn"]


def lines(count, seed, special=()):
    """Whole sentences, parts of them, and words of all of them mixed, with other blanks, digits, and characters at random."""
    draw, known = random.Random(seed), characters()
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    blanks = [" "] * 30 + ["  ", "   ", "\t", "\n", "\n\n", " \n", "\r\n", "", "\u00a0", "\u3000", "\u2028"]
    for _ in range(count):
        kind = draw.random()
        if kind < 0.1:
            yield draw.choice(SENTENCES)
            continue
        sentence = draw.choice(SENTENCES).split(" ")
        start = draw.randrange(len(sentence))
        parts = sentence[start : start + draw.randrange(1, 12)] if kind < 0.5 else [draw.choice(words) for _ in range(draw.randrange(12))]
        line = draw.choice(["", "", "", " ", "  ", "\n"])
        for part in parts:
            change = draw.randrange(100)
            if change < 5:
                part = part.upper()
            elif change < 10:
                part = part.capitalize()
            elif change < 13:
                part = part[::-1]
            elif change < 17:
                part = str(draw.randrange(10 ** draw.randrange(1, 9)))
            elif change < 19:
                part = "".join(draw.choices([*known[:300], *draw.choices(known, k=300), "\x01", "\x7f", "\u0085"], k=draw.randrange(1, 5)))
            elif change < 22 and special:
                part = draw.choice(special)
            line += part + draw.choice(blanks)
        yield line


def trained(tokenizer, trainer):
    tokenizer.train_from_iterator(lines(1500, seed=1), trainer)
    return tokenizer


def bpe(size, special=(), alphabet=None, **options):
    alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()} if alphabet is None else {"limit_alphabet": alphabet}
    return trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False, **alphabet, **options)


def byte_level(pattern=None, **options):
    if pattern is None:
        return pre_tokenizers.ByteLevel(**options)
    patterns = [pattern] if isinstance(pattern, str) else pattern
    splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_bpe(size=700, special=(), pattern=None, normalizer=None, model=None, pre_tokenizer=None, **options):
    tokenizer = Tokenizer(models.BPE() if model is None else model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = byte_level(pattern, **options) if pre_tokenizer is None else pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer, bpe(size, special))


def changed(tokenizer, change):
    described = json.loads(tokenizer.to_str())
    change(described)
    return Tokenizer.from_str(json.dumps(described))


def gpt2():
    return byte_bpe(special=["<|endoftext|>"], add_prefix_space=False)


def roberta():
    tokenizer = byte_bpe(special=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], add_prefix_space=True)
    tokenizer = changed(tokenizer, lambda json: json["added_tokens"][4].update(lstrip=True))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def llama3():
    tokenizer = byte_bpe(900, pattern=GPT4, model=models.BPE(ignore_merges=True))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    begin = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))])])  # fmt: skip
    return tokenizer


def qwen():
    tokenizer = byte_bpe(900, pattern=GPT4.replace("{1,3}", ""), normalizer=normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


def deepseek():
    return byte_bpe(900, special=["<｜begin▁of▁sentence｜>"], pattern=DEEPSEEK)


def falcon():
    return byte_bpe(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
                                                           pre_tokenizers.Digits(), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))  # fmt: skip


def starcoder():
    tokenizer = byte_bpe(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    tokenizer.add_tokens([AddedToken("fox", single_word=True), AddedToken("Hund", lstrip=True, rstrip=True), AddedToken("<tag>", normalized=False, rstrip=True)])
    tokenizer.add_special_tokens(["<|x|>", "<|xx|>"])
    return tokenizer


def clip():
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", continuing_subword_prefix="", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CLIP), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.BPEDecoder()
    return trained(tokenizer, bpe(700, ["<|endoftext|>"], end_of_word_suffix="</w>"))


def falls_back(special, **parts):
    """SentencePiece's BPE, whose unknown characters are bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    trained(tokenizer, bpe(900, [*special, *BYTES], alphabet=300))
    return changed(tokenizer, lambda json: json.update(added_tokens=json["added_tokens"][: len(special)]))


def texts_of_marks(*more):
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *more])


def llama2():
    tokenizer = falls_back(["<unk>", "<s>", "</s>"], normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                           decoder=texts_of_marks(decoders.Strip(" ", 1, 0)))  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def mistral():
    return falls_back(["<unk>", "<s>", "</s>"], pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
                      decoder=texts_of_marks(decoders.Strip(" ", 1, 0)))  # fmt: skip


def gemma():
    return falls_back(["<pad>", "<eos>", "<bos>", "<unk>"], normalizer=normalizers.Replace(" ", "▁"),
                      pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"), decoder=texts_of_marks())  # fmt: skip


def word_pieces(**options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return trained(tokenizer, trainers.WordPieceTrainer(vocab_size=1000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], limit_alphabet=400,
                                                        show_progress=False))  # fmt: skip


def bert():
    tokenizer = word_pieces()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def bert_cased():
    tokenizer = word_pieces(lowercase=False)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def unigram(special, **parts):
    tokenizer = Tokenizer(models.Unigram())
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return trained(tokenizer, trainers.UnigramTrainer(vocab_size=4000, special_tokens=list(special), unk_token="<unk>", show_progress=False))


def t5():
    tokenizer = unigram(["<pad>", "</s>", "<unk>"], normalizer=normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]),
                        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]), decoder=decoders.Metaspace())  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def albert():
    steps = normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Replace(Regex(" {2,}"), " ")
    return unigram(["<pad>", "<unk>", "[CLS]"], normalizer=normalizers.Sequence(list(steps)), pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())


def xlm_roberta():
    return unigram(["<s>", "<pad>", "<unk>"], normalizer=normalizers.Sequence([normalizers.Precompiled(base64.b64decode(CHARSMAP)), normalizers.Replace(Regex(" {2,}"), " ")]),
                   pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())  # fmt: skip


def unigram_of_bytes():
    def add_bytes(described):
        kept = described["model"]["vocab"]
        single = {piece for piece, _ in kept if len(piece) == 1}
        rare = set(sorted(single)[120:])
        described["model"].update(vocab=[kept[0], *([name, 0.0] for name in BYTES), *(entry for entry in kept[1:] if entry[0] not in rare)], byte_fallback=True)

    tokenizer = unigram(["<unk>"], normalizer=normalizers.Sequence([normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]),
                        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"), decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))  # fmt: skip
    return changed(tokenizer, add_bytes)


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_next")])
    trained(tokenizer, trainers.WordLevelTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    tokenizer.add_tokens([AddedToken("FOX"), AddedToken("caché")])
    return tokenizer


def bpe_of_words():
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return trained(tokenizer, bpe(900, ["[UNK]"], alphabet=200, continuing_subword_prefix="##"))


def numbers_end_pieces():
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d+"), "merged_with_previous")
    return trained(tokenizer, bpe(600, ["?"], alphabet=80))


FAMILIES = [gpt2, roberta, llama3, qwen, deepseek, falcon, starcoder, clip, llama2, mistral, gemma, bert, bert_cased, t5, albert, xlm_roberta,
            unigram_of_bytes, word_level, bpe_of_words, numbers_end_pieces]  # fmt: skip
