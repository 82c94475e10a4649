#include "runtime/data/chats/template_lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train::chats {
namespace {

using Kind = Token::Kind;

constexpr const char* kBlanks = " \t\r\n";

constexpr std::array<std::string_view, 26> kSigns = {"==", "!=", "<=", ">=", "//", "**", "(", ")", "[",
                                                     "]",  "{",  "}",  ",",  ".",  ":",  "|", "=", "<",
                                                     ">",  "+",  "-",  "*",  "/",  "%",  "~", ";"};

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : rest_(source) {
    // One newline at the end is no part of a template.
    if (rest_.ends_with('\n')) rest_.remove_suffix(1);
  }

  std::vector<Token> all() {
    while (!rest_.empty()) {
      const size_t open = opening();
      add_text(rest_.substr(0, open), open < rest_.size() ? rest_[open + 1] : '\0',
               open + 2 < rest_.size() ? rest_[open + 2] : '\0');
      advance(open);
      if (!rest_.empty()) block(rest_[1]);
    }
    return std::move(tokens_);
  }

 private:
  // Where the next of {{ {% {# is, or the end.
  size_t opening() const {
    for (size_t at = 0; at + 1 < rest_.size(); ++at) {
      if (rest_[at] == '{' && (rest_[at + 1] == '{' || rest_[at + 1] == '%' || rest_[at + 1] == '#')) return at;
    }
    return rest_.size();
  }

  // `kind` and `control` are what follows: the second character of what opens, and the one after it.
  void add_text(std::string_view text, char kind, char control) {
    const auto cut_after = [&](size_t last) { text = text.substr(0, last == std::string_view::npos ? 0 : last + 1); };
    if (control == '-') {
      cut_after(text.find_last_not_of(kBlanks));
    } else if ((kind == '%' || kind == '#') && control != '+') {
      // Blanks alone between the start of a line and the block.
      const size_t last = text.find_last_not_of(" \t");
      if (last == std::string_view::npos ? starts_line_ : text[last] == '\n') cut_after(last);
    }
    if (!text.empty()) tokens_.push_back({Kind::kText, std::string(text), line_});
  }

  void advance(size_t bytes) {
    line_ += std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(bytes), '\n');
    rest_.remove_prefix(bytes);
  }

  void block(char kind) {
    const int64_t line = line_;
    advance(2);
    if (!rest_.empty() && (rest_[0] == '-' || rest_[0] == '+')) advance(1);
    if (kind == '#') {
      const size_t close = rest_.find("#}");
      if (close == std::string_view::npos) fail("line ", line, ": a comment has no end");
      end_of_block(close, close > 0 && rest_[close - 1] == '-' ? '-' : '\0', /*trims=*/true);
      return;
    }
    tokens_.push_back({kind == '%' ? Kind::kStatement : Kind::kOutput, "", line});
    const std::string close = concat(kind == '%' ? '%' : '}', "}");
    int64_t depth = 0;  // of brackets: }} may end a dictionary in one
    for (;;) {
      advance(std::min(rest_.find_first_not_of(kBlanks), rest_.size()));
      if (rest_.empty()) fail("line ", line, ": ", kind == '%' ? "{%" : "{{", " has no end");
      const bool has_control = rest_[0] == '-' || rest_[0] == '+';
      if (depth == 0 && rest_.substr(has_control ? 1 : 0).starts_with(close)) {
        const char control = has_control ? rest_[0] : '\0';
        tokens_.push_back({Kind::kEnd, "", line_});
        end_of_block(has_control ? 1 : 0, control, kind == '%' && control != '+');
        return;
      }
      token(&depth);
    }
  }

  // Goes on after what closes a block, which begins at `close`.
  void end_of_block(size_t close, char control, bool trims) {
    advance(close + 2);
    const size_t blanks = control == '-'                     ? std::min(rest_.find_first_not_of(kBlanks), rest_.size())
                          : trims && rest_.starts_with('\n') ? 1
                                                             : 0;
    starts_line_ = blanks > 0 && rest_[blanks - 1] == '\n';
    advance(blanks);
  }

  void token(int64_t* depth) {
    const char c = rest_[0];
    size_t size = 1;
    if (is_letter(c)) {
      while (size < rest_.size() && (is_letter(rest_[size]) || is_digit(rest_[size]))) ++size;
      add(Kind::kName, size);
    } else if (is_digit(c)) {
      while (size < rest_.size() && is_digit(rest_[size])) ++size;
      const bool is_float = size + 1 < rest_.size() && rest_[size] == '.' && is_digit(rest_[size + 1]);
      if (is_float) ++size;
      while (is_float && size < rest_.size() && is_digit(rest_[size])) ++size;
      add(is_float ? Kind::kFloat : Kind::kInteger, size);
    } else if (c == '\'' || c == '"') {
      text_in_quotes(c);
    } else {
      const auto* const sign =
          std::find_if(kSigns.begin(), kSigns.end(), [&](std::string_view s) { return rest_.starts_with(s); });
      if (sign == kSigns.end()) fail("line ", line_, ": '", std::string(1, c), "' is no part of an expression");
      *depth += c == '(' || c == '[' || c == '{' ? 1 : c == ')' || c == ']' || c == '}' ? -1 : 0;
      add(Kind::kSign, sign->size());
    }
  }

  void add(Kind kind, size_t size) {
    tokens_.push_back({kind, std::string(rest_.substr(0, size)), line_});
    advance(size);
  }

  void text_in_quotes(char quote) {
    std::string text;
    size_t at = 1;
    for (; at < rest_.size() && rest_[at] != quote; ++at) {
      if (rest_[at] != '\\' || at + 1 == rest_.size()) {
        text += rest_[at];
        continue;
      }
      const char escaped = rest_[++at];
      if (escaped == 'n')
        text += '\n';
      else if (escaped == 't')
        text += '\t';
      else if (escaped == 'r')
        text += '\r';
      else if (escaped == '\\' || escaped == '\'' || escaped == '"')
        text += escaped;
      else
        fail("line ", line_, ": the escape \\", std::string(1, escaped), " is not known here");
    }
    if (at >= rest_.size()) fail("line ", line_, ": a text in quotes has no end");
    tokens_.push_back({Kind::kString, text, line_});
    advance(at + 1);
  }

  std::string_view rest_;
  int64_t line_ = 1;
  bool starts_line_ = true;  // the text that follows
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of_template(const std::string& source) {
  if (const size_t at = invalid_at(source); at != std::string::npos) {
    const auto line = 1 + std::count(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    fail("line ", line, ": byte ", at, " of the template is no UTF-8");
  }
  return Lexer(source).all();
}

}  // namespace onnx_train::chats
