// Comma-separated values as RFC 4180 has them: https://www.rfc-editor.org/rfc/rfc4180
#include <string_view>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/tables/table.h"

namespace onnx_train {
namespace {

class CsvReader {
 public:
  explicit CsvReader(const std::string& path) : file_(MappedFile::open(path)) {
    table_.path = path;
    table_.owner = file_;
    text_ = {reinterpret_cast<const char*>(file_->data()), file_->size()};
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // the byte order mark that spreadsheets write
  }

  DataTable read() {
    while (at_ < text_.size()) {
      const int64_t line = line_;
      const size_t begin = table_.fields.size();
      do field();
      while (take(','));
      end_line();
      const bool is_blank = table_.fields.size() == begin + 1 && table_.fields.back().empty();
      if (table_.columns.empty() && !is_blank) {
        table_.columns.assign(table_.fields.begin(), table_.fields.end());
      } else if (!is_blank && table_.fields.size() - begin != table_.columns.size()) {
        fail_as(ErrorCode::kTableField, table_.path, ", line ", line, ": ", table_.fields.size() - begin,
                " fields, the header has ", table_.columns.size());
      } else if (!is_blank) {
        table_.lines.push_back(line);
        continue;
      }
      table_.fields.resize(begin);
    }
    if (table_.columns.empty()) {
      fail_as(ErrorCode::kFile, table_.path, " is empty; the first line names the columns");
    }
    return std::move(table_);
  }

 private:
  static constexpr std::string_view kSpace = " \t\r";

  bool take(char wanted) {
    const bool is_there = at_ < text_.size() && text_[at_] == wanted;
    at_ += is_there ? 1 : 0;
    return is_there;
  }
  void skip_space() {
    while (at_ < text_.size() && kSpace.find(text_[at_]) != std::string_view::npos) ++at_;
  }
  void end_line() {
    if (at_ < text_.size() && !take('\n')) {
      fail_as(ErrorCode::kTableField, table_.path, ", line ", line_,
              ": a quoted field goes on after its closing quote");
    }
    ++line_;
  }

  void field() {
    skip_space();
    if (take('"')) return quoted();
    const size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
    std::string_view value = text_.substr(at_, end - at_);
    const size_t last = value.find_last_not_of(kSpace);
    table_.fields.push_back(value.substr(0, last == std::string_view::npos ? 0 : last + 1));
    at_ = end;
  }

  // After the opening quote. Two quotes stand for one.
  void quoted() {
    const int64_t line = line_;
    const size_t begin = at_;
    bool has_quotes = false;
    for (;;) {
      const size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos) {
        fail_as(ErrorCode::kTableField, table_.path, ", line ", line, ": a quoted field has no closing quote");
      }
      at_ = quote + 1;
      if (!take('"')) break;
      has_quotes = true;
    }
    const std::string_view value = text_.substr(begin, at_ - 1 - begin);
    for (const char c : value) line_ += c == '\n' ? 1 : 0;
    table_.fields.push_back(has_quotes ? unquoted(value) : value);
    skip_space();
  }
  std::string_view unquoted(std::string_view value) {
    std::string text;
    for (size_t i = 0; i < value.size(); ++i) {
      text += value[i];
      if (value[i] == '"') ++i;
    }
    return table_.unquoted.emplace_back(std::move(text));
  }

  std::shared_ptr<const MappedFile> file_;
  DataTable table_;
  std::string_view text_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

DataTable read_csv(const std::string& path) { return CsvReader(path).read(); }

}  // namespace onnx_train
