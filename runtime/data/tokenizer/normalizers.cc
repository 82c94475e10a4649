#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/step_table.h"
#include "runtime/data/tokenizer/steps.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;

// Leaves characters out. What follows one at the start is no longer the first.
template <typename Keep>
void filter(NormalizedText* text, const Keep& keep) {
  std::string kept;
  kept.reserve(text->text.size());
  for_each_character(text->text, [&](char32_t code, size_t at) {
    if (keep(code)) {
      append(&kept, code);
    } else if (at == 0) {
      text->is_first = false;
    }
  });
  text->text = std::move(kept);
}

// Each character as another.
template <typename Map>
void map(NormalizedText* text, const Map& other) {
  std::string mapped;
  mapped.reserve(text->text.size());
  for_each_character(text->text, [&](char32_t code, size_t) { append(&mapped, other(code)); });
  text->text = std::move(mapped);
}

Normalizer unicode_form(Normalization form) {
  return [form](NormalizedText* text) { text->text = normalized(text->text, form); };
}

void make_lowercase(NormalizedText* text) { text->text = lowercase(text->text); }

Normalizer strip(const Json& json) {
  const bool left = json.at("strip_left"), right = json.at("strip_right");
  return [left, right](NormalizedText* text) {
    std::string_view rest = text->text;
    while (right && !rest.empty() && is_space(last_character(rest).code))
      rest.remove_suffix(last_character(rest).bytes);
    const size_t before = rest.size();
    while (left && !rest.empty() && is_space(first_character(rest).code))
      rest.remove_prefix(first_character(rest).bytes);
    text->is_first = text->is_first && rest.size() == before;
    text->text = std::string(rest);
  };
}

Normalizer replace(const Json& json) {
  const TextPattern pattern = pattern_of(json);
  const std::string content = json.at("content");
  return [pattern, content](NormalizedText* text) {
    std::string replaced;
    pattern.for_each(text->text, [&](const TextMatch& part) {
      const std::string_view was = std::string_view(text->text).substr(part.begin, part.end - part.begin);
      replaced += part.is_match ? content : was;
      // What is written for several characters stands at the place of the last one.
      if (part.is_match && part.begin == 0 && !was.empty() &&
          (content.empty() || first_character(was).bytes < was.size()))
        text->is_first = false;
    });
    text->text = std::move(replaced);
  };
}

Normalizer prepend(const Json& json) {
  return [before = json.at("prepend").get<std::string>()](NormalizedText* text) {
    if (!text->text.empty()) text->text.insert(0, before);
  };
}

// https://github.com/google-research/bert#tokenization
Normalizer bert(const Json& json) {
  const bool cleans = json.at("clean_text"), spaces_ideographs = json.at("handle_chinese_chars"),
             lowers = json.at("lowercase");
  const Json accents = json.value("strip_accents", Json());
  const bool strips = accents.is_null() ? lowers : accents.get<bool>();
  return [cleans, spaces_ideographs, lowers, strips](NormalizedText* text) {
    constexpr char32_t kReplacement = 0xFFFD;
    const auto is_blank = [](char32_t code) { return code == '\t' || code == '\n' || code == '\r'; };
    if (cleans) {
      filter(text,
             [&](char32_t code) { return code != 0 && code != kReplacement && (is_blank(code) || !is_control(code)); });
      map(text, [&](char32_t code) { return is_space(code) ? U' ' : code; });
    }
    if (spaces_ideographs) {
      std::string spaced;
      for_each_character(text->text, [&](char32_t code, size_t) {
        if (is_ideograph(code)) spaced += ' ';
        append(&spaced, code);
        if (is_ideograph(code)) spaced += ' ';
      });
      text->text = std::move(spaced);
    }
    if (strips) {
      text->text = normalized(text->text, Normalization::kNFD);
      filter(text, [](char32_t code) { return !is_nonspacing_mark(code); });
    }
    if (lowers) make_lowercase(text);
  };
}

// SentencePiece's nmt: control characters go, other kinds of blanks become spaces.
void nmt(NormalizedText* text) {
  filter(text, [](char32_t code) {
    return !((code >= 0x01 && code <= 0x08) || code == 0x0B || (code >= 0x0E && code <= 0x1F) || code == 0x7F ||
             code == 0x8F || code == 0x9F);
  });
  map(text, [](char32_t code) {
    const bool is_blank = code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D || code == 0x1680 ||
                          (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
                          code == 0xFEFF || code == 0xFFFD;
    return is_blank ? U' ' : code;
  });
}

constexpr TokenizerStep<Normalizer> kNormalizers[] = {
    {"NFC", [](const Json&) { return unicode_form(Normalization::kNFC); }},
    {"NFD", [](const Json&) { return unicode_form(Normalization::kNFD); }},
    {"NFKC", [](const Json&) { return unicode_form(Normalization::kNFKC); }},
    {"NFKD", [](const Json&) { return unicode_form(Normalization::kNFKD); }},
    {"Lowercase", [](const Json&) -> Normalizer { return make_lowercase; }},
    {"StripAccents",
     [](const Json&) -> Normalizer {
       return [](NormalizedText* text) { filter(text, [](char32_t code) { return !is_mark(code); }); };
     }},
    {"Strip", strip},
    {"Replace", replace},
    {"Prepend", prepend},
    {"BertNormalizer", bert},
    {"Nmt", [](const Json&) -> Normalizer { return nmt; }},
    {"Precompiled",
     [](const Json& json) { return charsmap_normalizer(json.at("precompiled_charsmap").get<std::string>()); }},
    {"ByteLevel",
     [](const Json&) -> Normalizer { return [](NormalizedText* text) { text->text = byte_characters(text->text); }; }},
};

}  // namespace

TextPattern pattern_of(const Json& json) {
  const Json& pattern = json.at("pattern");
  if (const auto regex = pattern.find("Regex"); regex != pattern.end()) return TextPattern::regex(*regex);
  return TextPattern::text(pattern.at("String"));
}

std::vector<Normalizer> normalizers_of(const Json& json) {
  std::vector<Normalizer> steps;
  add_steps(json, kNormalizers, "normalizer", "normalizers", &steps);
  return steps;
}

}  // namespace onnx_train
