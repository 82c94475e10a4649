package onnxtrain;

/** The type of a tensor's elements, with the number that ONNX's TensorProto.DataType has for it. */
public enum ElementType {
  FLOAT(1, 4),
  UINT8(2, 1),
  INT8(3, 1),
  UINT16(4, 2),
  INT16(5, 2),
  INT32(6, 4),
  INT64(7, 8),
  BOOL(9, 1),
  /** Half precision; a buffer has its bits as shorts. */
  FLOAT16(10, 2),
  DOUBLE(11, 8),
  UINT32(12, 4),
  UINT64(13, 8),
  /** The upper half of a float; a buffer has its bits as shorts. */
  BFLOAT16(16, 2);

  final int number;
  final int bytes;

  ElementType(int number, int bytes) {
    this.number = number;
    this.bytes = bytes;
  }

  /** Bytes of an element. */
  public int bytes() {
    return bytes;
  }

  static ElementType of(int number) {
    for (ElementType type : values()) {
      if (type.number == number) return type;
    }
    throw new IllegalArgumentException("element type " + number + " is not known to this version of the Java package");
  }
}
