// Documents of texts and tokens, one part after the other, without ever having a whole file or input in memory: what
// --stream reads. The caller owns it; one thread at a time. Functions throw Error that names file and line.
//
//   -                   standard input: JSON lines, or else each line is a text
//   X.jsonl, X.jsonl.gz JSON lines: texts or conversations
//   X.txt, X.txt.gz     one text, which is read whole
//   X.bin, X.npy        tokens, mapped
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/files/document_buffer.h"
#include "runtime/data/files/read_options.h"

namespace onnx_train {

// What a source has read: all files before `file`, and of it the first `offset` bytes of lines, which are `lines`, or
// tokens.
struct DocumentPlace {
  int64_t file = 0, offset = 0, lines = 0;
};

// Throws Error: a checkpoint has a place that no stream has.
[[noreturn]] void refuse_place();

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  // Adds documents until the buffer has `tokens` tokens, or there are no more.
  virtual void read(int64_t tokens, DocumentBuffer* buffer) = 0;
  virtual DocumentPlace place() const = 0;
  // Goes on from there, without making tokens of what is before it. Standard input goes forward alone.
  virtual void seek(const DocumentPlace& place) = 0;
  // The first bytes of standard input, at most kBytesOfHead, of the lines that have been read.
  virtual std::string head() const { return ""; }
};
inline constexpr size_t kBytesOfHead = size_t{1} << 16;

// The files after each other; "-" alone is standard input. `input` is the model's that the tokens go to.
std::unique_ptr<DocumentSource> document_source(const std::vector<std::string>& paths, const std::string& input,
                                                const ReadOptions& options);
bool is_streamed_file(const std::string& path);  // by its name

}  // namespace onnx_train
