#include "runtime/data/loading/document_source.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/load_element.h"
#include "runtime/data/chats/conversations.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {
namespace {

// Lines of a file, packed by gzip or not, or of standard input.
class Lines {
 public:
  explicit Lines(const std::string& path)
      : name_(path == "-" ? "standard input" : path), file_(path == "-" ? nullptr : gzopen(path.c_str(), "rb")) {
    if (!file_ && path != "-") fail_as(ErrorCode::kFile, "cannot read ", name_, ": ", std::strerror(errno));
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines() {
    if (file_) gzclose(file_);
  }

  // False at the end.
  bool next(std::string* line) {
    line->clear();
    for (;;) {
      const size_t stop = text_.find('\n', at_);
      if (stop != std::string::npos) {
        line->append(text_, at_, stop - at_);
        offset_ += static_cast<int64_t>(stop + 1 - at_);
        at_ = stop + 1;
        ++number_;
        return true;
      }
      line->append(text_, at_);
      offset_ += static_cast<int64_t>(text_.size() - at_);
      if (line->size() > kMostOfLine) fail_as(ErrorCode::kFile, where(1), " is longer than ", kMostOfLine, " bytes");
      if (!fill()) {
        number_ += line->empty() ? 0 : 1;
        return !line->empty();
      }
    }
  }
  // "a.jsonl, line 7", of the line that `next` has given, or of one after it.
  std::string where(int64_t after = 0) const { return concat(name_, ", line ", number_ + after); }
  const std::string& name() const { return name_; }
  int64_t offset() const { return offset_; }  // bytes of the lines that `next` has given
  int64_t number() const { return number_; }
  const std::string& head() const { return head_; }  // of standard input

  // Makes the next line the one after the first `number` lines, which have `offset` bytes.
  void seek(int64_t offset, int64_t number) {
    if (file_) {
      text_.clear();
      at_ = 0;
      if (gzseek(file_, static_cast<z_off_t>(offset), SEEK_SET) < 0) fail_to_seek(offset);
    }
    while (!file_ && offset_ < offset) {
      if (at_ == text_.size() && !fill()) fail_to_seek(offset);
      const auto count = std::min(static_cast<size_t>(offset - offset_), text_.size() - at_);
      at_ += count;
      offset_ += static_cast<int64_t>(count);
    }
    offset_ = offset;
    number_ = number;
  }

 private:
  [[noreturn]] void fail_to_seek(int64_t offset) const {
    fail_as(ErrorCode::kCannotResume, "cannot resume: ", name_, " has fewer than the ", offset,
            " bytes that the run has read of it");
  }

  static constexpr size_t kMostOfLine = size_t{1} << 30;

  bool fill() {
    constexpr unsigned kBytes = 1U << 16;
    text_.resize(kBytes);
    at_ = 0;
    if (!file_) {
      text_.resize(read_standard_input(text_.data(), kBytes));
      if (head_.size() < kBytesOfHead) head_.append(text_, 0, kBytesOfHead - head_.size());
      return !text_.empty();
    }
    const int count = gzread(file_, text_.data(), kBytes);
    int state = Z_OK;
    const char* const said = gzerror(file_, &state);
    if (count < 0 || state == Z_BUF_ERROR)
      fail_as(ErrorCode::kFile, name_, " is damaged or cut off after line ", number_, ": ", said);
    text_.resize(static_cast<size_t>(count));
    return count > 0;
  }

  const std::string name_;
  gzFile file_;  // null: standard input
  std::string text_, head_;
  size_t at_ = 0;
  int64_t offset_ = 0, number_ = 0;
};

// What makes tokens of lines; the files of a stream share it.
struct LineReaders {
  LineReaders(const std::string& to, const ReadOptions& given)
      : input(to), options(given), tokenizer(tokenizer_of(given)) {
    if (tokenizer) end = end_of_documents(*tokenizer, given);
  }

  void add_text(std::string_view text, const std::string& where, DocumentBuffer* buffer) {
    if (!tokenizer) {
      check_is_of_bytes(where, input, options);
      buffer->add(std::vector<int64_t>(reinterpret_cast<const uint8_t*>(text.data()),
                                       reinterpret_cast<const uint8_t*>(text.data()) + text.size()),
                  0);
      return;
    }
    buffer->add(tokenizer->encode(text, where), end);
  }
  void add_conversation(std::string_view line, const std::string& where, DocumentBuffer* buffer) {
    if (!conversations) conversations = conversation_reader(options);
    conversations(line, where, buffer);
  }

  const std::string input;
  const ReadOptions options;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<int64_t> end;
  ConversationReader conversations;
};

class LineSource : public DocumentSource {
 public:
  LineSource(const std::string& path, LineReaders* readers) : lines_(path), readers_(*readers), is_json_(path != "-") {}

  void read(int64_t tokens, DocumentBuffer* buffer) override {
    for (std::string line; buffer->size() < tokens && lines_.next(&line);) {
      if (is_blank(line)) continue;
      if (!kind_) kind_ = kind_of(line);
      if (*kind_ == Kind::kConversation) {
        readers_.add_conversation(line, lines_.where(), buffer);
      } else if (*kind_ == Kind::kText) {
        readers_.add_text(line, lines_.where(), buffer);
      } else {
        const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!json.is_object() || !json.contains("text") || !json["text"].is_string())
          fail_as(ErrorCode::kFile, lines_.where(), R"( is no JSON object with a "text": {"text": "..."})");
        readers_.add_text(json["text"].get_ref<const std::string&>(), lines_.where(), buffer);
      }
    }
  }

  DocumentPlace place() const override { return {0, lines_.offset(), lines_.number()}; }
  void seek(const DocumentPlace& place) override {
    for (std::string line; !kind_ && place.offset > 0 && lines_.next(&line);) {
      if (!is_blank(line)) kind_ = kind_of(line);
    }
    lines_.seek(place.offset, place.lines);
  }
  std::string head() const override { return lines_.head().substr(0, static_cast<size_t>(lines_.offset())); }

 private:
  static bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

  enum class Kind { kText, kJson, kConversation };
  // Of the first line, and so of all.
  Kind kind_of(const std::string& line) const {
    if (!is_json_ && !line.starts_with('{')) return Kind::kText;
    return readers_.tokenizer && is_line_of_conversation(line) ? Kind::kConversation : Kind::kJson;
  }

  Lines lines_;
  LineReaders& readers_;
  bool is_json_;
  std::optional<Kind> kind_;
};

class TextSource : public DocumentSource {
 public:
  TextSource(const std::string& path, LineReaders* readers) : path_(path), readers_(*readers) {}

  void read(int64_t /*tokens*/, DocumentBuffer* buffer) override {
    if (std::exchange(is_read_, true)) return;
    Lines lines(path_);
    std::string text;
    for (std::string line; lines.next(&line);) text += line + "\n";
    if (!text.empty()) readers_.add_text(text, path_, buffer);
  }
  DocumentPlace place() const override { return {0, is_read_ ? 1 : 0, 0}; }
  void seek(const DocumentPlace& place) override { is_read_ = place.offset > 0; }

 private:
  std::string path_;
  LineReaders& readers_;
  bool is_read_ = false;
};

// Mapped tokens: documents that end after --document-end, or parts of the file where nothing says so.
class TokenSource : public DocumentSource {
 public:
  TokenSource(const std::string& path, const ReadOptions& options)
      : shard_(read_token_shard(path, options)), end_(options.document_end) {}

  void read(int64_t tokens, DocumentBuffer* buffer) override {
    const int64_t count = shard_.tokens.size();
    while (at_ < count && buffer->size() < tokens) {
      std::vector<int64_t> document;
      const int64_t most = end_ ? count - at_ : std::min(count - at_, tokens - buffer->size());
      dispatch_integer(shard_.tokens.dtype(), [&](auto tag) {
        for (int64_t i = 0; i < most; ++i) {
          document.push_back(static_cast<int64_t>(load_element<decltype(tag)>(shard_.tokens.data(), at_ + i)));
          if (document.back() < 0 || document.back() > std::numeric_limits<uint32_t>::max())
            fail_as(ErrorCode::kData, shard_.path, " holds ", document.back(), " at position ", at_ + i,
                    ", which is no token");
          if (end_ && document.back() == *end_) break;
        }
      });
      at_ += std::ssize(document);
      buffer->add(document, std::nullopt);
    }
  }
  DocumentPlace place() const override { return {0, at_, 0}; }
  void seek(const DocumentPlace& place) override { at_ = place.offset; }

 private:
  TokenShard shard_;
  std::optional<int64_t> end_;
  int64_t at_ = 0;
};

bool is_packed(const std::string& path, const std::string& suffix) {
  return path.ends_with(suffix) || path.ends_with(suffix + ".gz");
}

class Sources : public DocumentSource {
 public:
  Sources(std::vector<std::string> paths, const std::string& input, const ReadOptions& options)
      : paths_(std::move(paths)), readers_(input, options) {}

  void read(int64_t tokens, DocumentBuffer* buffer) override {
    while (buffer->size() < tokens) {
      if (source_) source_->read(tokens, buffer);
      if (buffer->size() >= tokens) return;
      if (next_ == paths_.size()) return;
      open_next();
    }
  }
  DocumentPlace place() const override {
    if (!source_) return {};
    DocumentPlace place = source_->place();
    place.file = static_cast<int64_t>(next_) - 1;
    return place;
  }
  void seek(const DocumentPlace& place) override {
    if (place.file < 0 || place.file >= std::ssize(paths_) || place.offset < 0 || place.lines < 0) refuse_place();
    if (!source_ || static_cast<int64_t>(next_) - 1 != place.file) {
      next_ = static_cast<size_t>(place.file);
      open_next();
    }
    source_->seek(place);
  }
  std::string head() const override { return source_ ? source_->head() : ""; }

 private:
  void open_next() {
    const std::string& path = paths_[next_++];
    if (path == "-" || is_packed(path, ".jsonl")) {
      source_ = std::make_unique<LineSource>(path, &readers_);
    } else if (is_packed(path, ".txt")) {
      source_ = std::make_unique<TextSource>(path, &readers_);
    } else {
      source_ = std::make_unique<TokenSource>(path, readers_.options);
    }
  }

  const std::vector<std::string> paths_;
  LineReaders readers_;
  size_t next_ = 0;
  std::unique_ptr<DocumentSource> source_;
};

}  // namespace

bool is_streamed_file(const std::string& path) {
  return is_token_file(path) || path.ends_with(".jsonl.gz") || path.ends_with(".txt.gz");
}

void refuse_place() {
  fail_as(ErrorCode::kCannotResume, "cannot resume: the checkpoint's position in the stream is damaged");
}

std::unique_ptr<DocumentSource> document_source(const std::vector<std::string>& paths, const std::string& input,
                                                const ReadOptions& options) {
  return std::make_unique<Sources>(paths, input, options);
}

}  // namespace onnx_train
