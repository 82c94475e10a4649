// Pictures that cannot be read: what becomes of them, before the first step. Functions run on any thread, and throw
// Error of the code kFile that names the file.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/data/images/files.h"

namespace onnx_train {

// After the message of a picture that cannot be read.
inline constexpr const char* kBadPictureHint = "; mend or remove it, or leave such pictures out: --on-bad-picture skip";

// What decoding a file said, by its path (of a mask: of the picture); "" for one that can be read. Kept where data are
// opened twice.
using PictureFaults = std::map<std::string, std::string>;

// Whether decoding all files takes a second or so: then they are checked before the first step.
bool are_few_bytes(const PictureFiles& files);

// As --on-bad-picture says. "skip": decodes all files, and leaves out the samples whose picture or mask cannot be read,
// which a note says. "stop", or "": files of few bytes are decoded, and one that cannot be read is an error; of more,
// it is one when the sample is read.
std::shared_ptr<const PictureFiles> readable_pictures(std::shared_ptr<const PictureFiles> files,
                                                      const std::string& on_bad, PictureFaults* faults);

}  // namespace onnx_train
