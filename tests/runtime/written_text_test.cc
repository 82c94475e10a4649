#include "runtime/generation/written_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/error_of.h"

namespace onnx_train::written_text_test {
namespace {

using Stops = WrittenText::Stops;

enum Token : int64_t { kA, kB, kC, kSpace, kAb, kSpaceAb, kFirstHalf, kSecondHalf, kEnd };

const Tokenizer& tokenizer() {
  static const Tokenizer read = [] {
    const std::string path = testing::TempDir() + "written_text.json";
    std::ofstream(path) << R"({"added_tokens": [{"id": 8, "content": "<end>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}],
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
      "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "Ã": 6, "©": 7},
                "merges": ["a b", "Ġ ab"]}})";
    return Tokenizer(path);
  }();
  return read;
}

WrittenText text_with(std::vector<std::string> stops, Stops shows = Stops::kShown, std::vector<int64_t> prompt = {}) {
  return {&tokenizer(), std::move(prompt), std::move(stops), shows};
}

TEST(WrittenText, AStopMayBeginAndEndInsideAToken) {
  WrittenText shown = text_with({"bc"});
  EXPECT_FALSE(shown.add(kAb));
  EXPECT_EQ(shown.more(false), "ab");
  EXPECT_TRUE(shown.add(kC));
  EXPECT_EQ(shown.more(false), "c");

  WrittenText inside = text_with({" a", "b a"});
  EXPECT_FALSE(inside.add(kAb));
  EXPECT_TRUE(inside.add(kSpaceAb));  // "b" after the stop is no part of the text
  EXPECT_EQ(inside.more(false), "ab a");
  EXPECT_EQ(inside.text(), "ab a");
}

TEST(WrittenText, AHiddenStopIsNoPartOfTheText) {
  WrittenText text = text_with({"cab", "x"}, Stops::kHidden);
  EXPECT_FALSE(text.add(kB));
  EXPECT_EQ(text.more(false), "b");
  EXPECT_FALSE(text.add(kC));
  EXPECT_FALSE(text.add(kA));
  EXPECT_EQ(text.more(false), "");  // "ca" may begin a stop
  EXPECT_FALSE(text.add(kC));
  EXPECT_EQ(text.more(false), "ca");
  EXPECT_TRUE(text.add(kAb));
  EXPECT_EQ(text.more(true), "");
  EXPECT_EQ(text.text(), "bca");
}

TEST(WrittenText, WhatWaitsIsGivenAtTheEnd) {
  WrittenText text = text_with({"cab"}, Stops::kHidden);
  text.add(kC);
  EXPECT_EQ(text.more(false), "");
  EXPECT_EQ(text.more(true), "c");
}

TEST(WrittenText, APromptCompletesNoStop) {
  WrittenText text = text_with({"bc"}, Stops::kShown, {kAb, kC, kB});
  EXPECT_EQ(text.more(false), "abcb");
  EXPECT_FALSE(text.add(kC));
  EXPECT_FALSE(text.add(kB));
  EXPECT_TRUE(text.add(kC));
  EXPECT_EQ(text.more(false), "cbc");
}

TEST(WrittenText, ASpecialTokenStopsAndIsNotShown) {
  for (const Stops shows : {Stops::kShown, Stops::kHidden}) {
    WrittenText text = text_with({"<end>"}, shows);
    EXPECT_FALSE(text.add(kAb));
    EXPECT_TRUE(text.add(kEnd));
    EXPECT_EQ(text.more(false), "ab");
  }
  WrittenText part = text_with({"b<e"});
  part.add(kAb);
  EXPECT_TRUE(part.add(kEnd));
  EXPECT_EQ(part.more(false), "ab");
}

TEST(WrittenText, NoHalfOfACharacterIsGiven) {
  WrittenText text = text_with({});
  text.add(kAb);
  text.add(kFirstHalf);
  EXPECT_EQ(text.more(false), "");
  text.add(kSecondHalf);
  EXPECT_EQ(text.more(false), "abé");
  text.add(kFirstHalf);
  EXPECT_EQ(text.more(true), "\xEF\xBF\xBD");

  WrittenText bytes(nullptr, {'a', 0xF0}, {}, Stops::kShown);
  EXPECT_EQ(bytes.more(false), "a");
  for (const int64_t byte : {0x9F, 0x98}) {
    bytes.add(byte);
    EXPECT_EQ(bytes.more(false), "");
  }
  bytes.add(0x80);
  EXPECT_EQ(bytes.more(false), "😀");
  bytes.add(0xC3);
  EXPECT_EQ(bytes.more(true), "\xC3");
  EXPECT_THAT(error_of([&] { bytes.add(256); }), testing::HasSubstr("token 256 is no byte"));
}

}  // namespace
}  // namespace onnx_train::written_text_test
