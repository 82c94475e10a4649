#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/tokenizer/tokenizer.h"
#include "runtime/data/tokenizer/unicode.h"
#include "tests/support/error_of.h"

namespace onnx_train::tokenizer_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string write(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "tokenizers/" + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// GPT-2's kind: bytes, three merges, a special token.
const std::string kGpt2 = R"({"version": "1.0", "truncation": {"max_length": 2}, "padding": {"length": 9},
  "added_tokens": [{"id": 9, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "Ã": 6, "©": 7, "Ã©": 8},
            "merges": ["a b", ["Ġ", "ab"], "Ã ©"]}})";

// BERT's kind: words, with a token before and after.
const std::string kBert = R"({"version": "1.0", "added_tokens": [
    {"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "TemplateProcessing", "pair": [],
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}, "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[PAD]": 4, "good": 5, "bad": 6, "##ly": 7, "!": 8}}})";

std::string with(std::string json, const std::string& from, const std::string& to) {
  const size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return json.replace(at, from.size(), to);
}

std::string error_with(const std::string& from, const std::string& to) {
  const std::string path = write("changed.json", with(kGpt2, from, to));
  return error_of([&] { Tokenizer(path).encode("abc", "a text"); });
}

ReadOptions reading(const std::string& tokenizer, int64_t block) {
  ReadOptions options;
  options.tokenizer = tokenizer;
  options.block_size = block;
  return options;
}

std::vector<int64_t> row(const DataArrays& data, const std::string& name, int64_t i) {
  const Tensor rows = data.find(name)->read_all();
  const int64_t length = rows.shape()[1];
  std::vector<int64_t> row;
  for (int64_t t = 0; t < length; ++t) row.push_back(static_cast<int64_t>(rows.at(i * length + t)));
  return row;
}

const std::vector<InputSpec> kBlocks = {{"tokens", {DType::kInt64, Dims{"batch", "length"}}},
                                        {"labels", {DType::kInt64, Dims{"batch", "length"}}, /*from_loss=*/true}};
const std::vector<InputSpec> kTexts = {{"input_ids", {DType::kInt64, Dims{"batch", 5}}},
                                       {"attention_mask", {DType::kInt64, Dims{"batch", 5}}},
                                       {"labels", {DType::kInt64, Dims{"batch"}}, /*from_loss=*/true}};

TEST(Tokenizer, BytesAreMergedAndComeBackAsText) {
  Tokenizer tokenizer(write("gpt2/tokenizer.json", kGpt2));
  EXPECT_THAT(tokenizer.encode("ab abc<end>é", "a text"), ElementsAre(4, 5, 2, 9, 8));
  EXPECT_EQ(tokenizer.decode({4, 5, 2, 9, 8}), "ab abcé");
  EXPECT_EQ(tokenizer.decode({4, 9, 6}, /*skips_special=*/false), "ab<end>\xEF\xBF\xBD");  // half a character
  EXPECT_EQ(tokenizer.decode({4, 1000}), "ab");
  EXPECT_EQ(tokenizer.largest(), 9);
  EXPECT_THAT(tokenizer.identity(), testing::StartsWith("tokenizer.json "));
  EXPECT_EQ(tokenizer.identity().size(), std::string("tokenizer.json 0123456789abcdef").size());
  EXPECT_EQ(tokenizer.end(), std::nullopt);
  EXPECT_EQ(error_of([&] { tokenizer.encode("ab\xff", "x.txt"); }),
            "x.txt has no tokens of " + tokenizer.path() + ": its byte 2 is no UTF-8");
}

TEST(Tokenizer, AFolderSaysWhichTokenEndsAText) {
  write("ends/tokenizer.json", kGpt2);
  const std::string folder = testing::TempDir() + "tokenizers/ends";
  for (const char* end : {R"("<end>")", R"({"content": "<end>", "lstrip": false})"}) {
    write("ends/tokenizer_config.json", std::string(R"({"eos_token": )") + end + "}");
    EXPECT_EQ(Tokenizer(folder).end(), 9);
  }
  write("ends/tokenizer_config.json", "{");
  EXPECT_THAT(error_of([&] { Tokenizer{folder}; }), HasSubstr("ends/tokenizer_config.json"));
  write("none/model.bin", "");
  EXPECT_THAT(error_of([&] { Tokenizer(testing::TempDir() + "tokenizers/none"); }),
              HasSubstr("holds no tokenizer.json"));
  EXPECT_THAT(error_of([&] { Tokenizer("/no/tokenizer.json"); }),
              HasSubstr("there is no tokenizer at /no/tokenizer.json"));
}

TEST(Tokenizer, WhatIsNotKnownIsNamedWithItsFile) {
  const auto expect = [](const std::string& error, const std::string& what) {
    EXPECT_THAT(error, HasSubstr(what));
    EXPECT_THAT(error, HasSubstr("changed.json"));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  };
  expect(error_with(R"("normalizer": null)", R"("normalizer": {"type": "Rot13"})"),
         "the normalizer 'Rot13' is not known");
  expect(error_with(R"("pre_tokenizer": {"type": "ByteLevel")", R"("pre_tokenizer": {"type": "Scripts")"),
         "the pre_tokenizer 'Scripts'");
  expect(error_with(R"("decoder": {"type": "ByteLevel")", R"("decoder": {"type": "CTC")"), "the decoder 'CTC'");
  expect(error_with(R"("post_processor": {"type": "ByteLevel")", R"("post_processor": {"type": "X")"),
         "the post_processor 'X'");
  expect(error_with(R"("type": "BPE")", R"("type": "Lattice")"), "the model 'Lattice'");
  expect(error_with(R"("dropout": null)", R"("dropout": 0.1)"), "dropout of 0.1");
  expect(error_with(R"("version": "1.0")", R"("version": "2.0")"), "its version is \"2.0\"");
  expect(error_with(R"(["Ġ", "ab"])", R"(["Ġ", "x"])"), "'Ġx' is not in the vocabulary");
  expect(error_with(R"("ab": 4)", R"("ab": -4)"), "'ab' of 'vocab' has no number");
  expect(error_with(R"("normalizer": null)",
                    R"("normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""})"),
         "the regular expression '(' is none");
  std::string deep = "null";
  for (int i = 0; i < 40; ++i) deep = R"({"type": "Sequence", "normalizers": [)" + deep + "]}";
  expect(error_with(R"("normalizer": null)", R"("normalizer": )" + deep), "Sequences in Sequences");
}

// Each beginning of a file, and the file with each byte changed, is read or refused.
TEST(Tokenizer, DamagedFilesAreRefused) {
  int refused = 0;
  for (const std::string& json : {kGpt2, kBert}) {
    for (size_t size = 0; size < json.size(); size += 7) {
      const std::string path = write("damaged.json", json.substr(0, size));
      EXPECT_THAT(error_of([&] { Tokenizer{path}; }), HasSubstr("damaged.json")) << size;
      std::string flipped = json;
      flipped[size] = static_cast<char>(flipped[size] ^ (1 << size % 8));
      write("damaged.json", flipped);
      refused += error_of([&] { Tokenizer(path).encode("ab good <end> é", "a text"); }).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Tokenizer, DocumentsAreFilesOrLinesAndTheTokenThatEndsThemFollows) {
  const std::string tokenizer = write("documents/tokenizer.json", kGpt2);
  const std::string text = write("documents/a.txt", "ab abab ab"),
                    lines = write("documents/a.jsonl", "{\"text\": \"ab ab\"}\n\n{\"text\": \"c\"}\n");
  const DataArrays one = open_data(text, kBlocks, reading(tokenizer, 3));
  EXPECT_THAT(row(one, "tokens", 0), ElementsAre(4, 5, 4));
  EXPECT_THAT(row(one, "labels", 0), ElementsAre(5, 4, 5));
  EXPECT_THAT(one.summary, HasSubstr("1 document, nothing between them, by " + tokenizer));
  EXPECT_THAT(one.metadata.at(kTokenizer), HasSubstr("tokenizer.json "));
  ReadOptions ended = reading(tokenizer, 4);
  ended.document_end = 9;
  ended.ignored_label = -100;
  const DataArrays two = open_data(lines, kBlocks, ended);
  EXPECT_THAT(row(two, "tokens", 0), ElementsAre(4, 5, 9, 2));
  EXPECT_THAT(row(two, "labels", 0), ElementsAre(5, 9, -100, 9));
  const std::string ending = write("documents_that_end/tokenizer.json", kGpt2);
  write("documents_that_end/tokenizer_config.json", R"({"eos_token": "<end>"})");
  const DataArrays known = open_data(lines, kBlocks, reading(ending, 4));
  EXPECT_THAT(row(known, "labels", 0), ElementsAre(5, 9, 2, 9));
  EXPECT_THAT(known.summary, HasSubstr("2 documents, the token 9 after each"));
  write("documents/b.txt", "ab\xff");
  EXPECT_THAT(
      error_of([&] { open_data(testing::TempDir() + "tokenizers/documents/b.txt", kBlocks, reading(tokenizer, 3)); }),
      HasSubstr("b.txt has no tokens of "));
}

TEST(Tokenizer, AModelKnowsWhichTokenizerItWasTrainedWith) {
  const std::string tokenizer = write("known.json", kGpt2), other = write("other.json", with(kGpt2, "Ġ", "Ä"));
  const std::string text = write("known.txt", "abababab");
  ReadOptions options = reading(tokenizer, 1);
  options.no_token_cache = true;
  options.metadata = open_data(text, kBlocks, options).metadata;
  EXPECT_TRUE(open_data(text, kBlocks, options).notes.empty());
  options.tokenizer = write("same/known.json", kGpt2);  // another place
  EXPECT_TRUE(open_data(text, kBlocks, options).notes.empty());
  options.tokenizer = write("changed.json", with(kGpt2, "<end>", "<END>"));
  EXPECT_THAT(open_data(text, kBlocks, options).notes,
              ElementsAre(HasSubstr("the model was trained with known.json ")));
  options.tokenizer.clear();
  EXPECT_THAT(error_of([&] { open_data(text, kBlocks, options); }), HasSubstr("give it with --tokenizer"));
}

TEST(Tokenizer, TextsWithLabelsHaveTheTokensAroundThem) {
  const std::string tokenizer = write("bert.json", kBert);
  const std::string table = write("reviews.csv", "text,label\n\"Good,\",1\nbadly good badly!,0\n");
  const DataArrays data = open_data(table, kTexts, reading(tokenizer, 0));
  EXPECT_THAT(row(data, "input_ids", 0), ElementsAre(2, 5, 1, 3, 4));  // [PAD] is 4
  EXPECT_THAT(row(data, "attention_mask", 0), ElementsAre(1, 1, 1, 1, 0));
  EXPECT_THAT(row(data, "input_ids", 1), ElementsAre(2, 6, 7, 5, 3));
  EXPECT_THAT(data.summary, HasSubstr("1 is longer, and cut"));
  const std::vector<InputSpec> narrow = {{"input_ids", {DType::kInt64, Dims{"batch", 1}}}, kTexts[2]};
  EXPECT_THAT(error_of([&] { open_data(table, narrow, reading(tokenizer, 0)); }),
              HasSubstr("puts 2 tokens around a text, and a sample has 1"));
}

TEST(Tokenizer, BytesThatAreNoTextAreReplacedAsRustReplacesThem) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(repaired("a\xE2\x82"
                     "b"),
            "a" + mark + "b");                              // a part of a character is one
  EXPECT_EQ(repaired("\xED\xA0\x80"), mark + mark + mark);  // half of a pair of UTF-16
  EXPECT_EQ(repaired("\xC0\xAF\xF0\x9F\x98"), mark + mark + mark);
  EXPECT_EQ(repaired("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
}

}  // namespace
}  // namespace onnx_train::tokenizer_test
