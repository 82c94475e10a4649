package onnxtrain;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.Arrays;

/**
 * A dense tensor in row-major order. Those that a program makes refer to a direct buffer, which the library reads in
 * place. Those that the library gives refer to its memory without a copy: outputs are valid until the next call with
 * their session, arrays of a dataset as long as that is open. buffer() throws after that. A buffer of an output that was
 * taken before must not be used then; one of a dataset may.
 */
public final class Tensor {
  private final String name;
  private final ElementType type;
  private final long[] shape;
  private final ByteBuffer data;
  private Validity validity;
  private boolean kept;
  private boolean readOnly;

  /** Says whether memory of the library is still there, and keeps it while a buffer of it is reachable. */
  interface Validity {
    void check();
  }

  private Tensor(String name, ElementType type, long[] shape, ByteBuffer data) {
    this.name = name;
    this.type = type;
    this.shape = shape;
    this.data = data;
  }

  /** Of native code. */
  Tensor(String name, int type, long[] shape, ByteBuffer data) {
    this(name, ElementType.of(type), shape, data == null ? null : data.order(ByteOrder.nativeOrder()));
  }

  /** Of mapped files, a write to which would end the process. */
  Tensor readOnly() {
    readOnly = true;
    return this;
  }

  /** The buffer to which all that are made of it refer; may be null. */
  ByteBuffer root() {
    return data;
  }

  Tensor validFor(Validity memory) {
    validity = memory;
    return this;
  }

  /**
   * A tensor over a direct buffer, from its position to its limit, without a copy. The buffer is not to be written to
   * while a call reads it. Its order is that of the machine, which is not the one that Java gives a new buffer:
   * ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder()), before elements are put.
   */
  public static Tensor of(String name, ElementType type, long[] shape, ByteBuffer data) {
    if (!data.isDirect()) throw new IllegalArgumentException("the buffer of '" + name + "' is not direct");
    if (type.bytes > 1 && data.order() != ByteOrder.nativeOrder()) {
      throw new IllegalArgumentException("the buffer of '" + name + "' is " + data.order() + ", and the machine "
          + ByteOrder.nativeOrder() + ": set order(ByteOrder.nativeOrder()) before elements are put into it");
    }
    final long expected = elements(name, shape) * type.bytes;
    if (data.remaining() != expected) {
      throw new IllegalArgumentException("the buffer of '" + name + "' has " + data.remaining()
          + " bytes, its shape " + Arrays.toString(shape) + " of " + type + " " + expected);
    }
    return new Tensor(name, type, shape.clone(), data.slice().order(ByteOrder.nativeOrder()));
  }

  /** A copy of the array. */
  public static Tensor of(String name, long[] shape, float... values) {
    final ByteBuffer data = allocate(name, ElementType.FLOAT, shape, values.length);
    data.asFloatBuffer().put(values);
    return new Tensor(name, ElementType.FLOAT, shape.clone(), data);
  }

  /** A copy of the array. */
  public static Tensor of(String name, long[] shape, double... values) {
    final ByteBuffer data = allocate(name, ElementType.DOUBLE, shape, values.length);
    data.asDoubleBuffer().put(values);
    return new Tensor(name, ElementType.DOUBLE, shape.clone(), data);
  }

  /** A copy of the array. */
  public static Tensor of(String name, long[] shape, long... values) {
    final ByteBuffer data = allocate(name, ElementType.INT64, shape, values.length);
    data.asLongBuffer().put(values);
    return new Tensor(name, ElementType.INT64, shape.clone(), data);
  }

  /** A copy of the array. */
  public static Tensor of(String name, long[] shape, int... values) {
    final ByteBuffer data = allocate(name, ElementType.INT32, shape, values.length);
    data.asIntBuffer().put(values);
    return new Tensor(name, ElementType.INT32, shape.clone(), data);
  }

  /** A scalar: scalar("learning_rate", 1e-3f). */
  public static Tensor scalar(String name, float value) {
    return of(name, new long[0], value);
  }

  public String name() {
    return name;
  }

  public ElementType type() {
    return type;
  }

  public long[] shape() {
    return shape.clone();
  }

  /** The number of elements. */
  public long elements() {
    return elements(name, shape);
  }

  /** The elements in native order, without a copy: the memory of the library or the program. */
  public ByteBuffer buffer() {
    if (data == null) {
      throw new IllegalStateException("'" + name + "' has no data, or more bytes than a ByteBuffer: 2147483647");
    }
    if (validity != null) {
      validity.check();
      if (!kept) {
        final Validity memory = validity;
        Reclaimer.register(data, () -> keep(memory));  // a buffer that is made of another one refers to the first one
        kept = true;
      }
    }
    return (readOnly ? data.asReadOnlyBuffer() : data.duplicate()).order(ByteOrder.nativeOrder());
  }

  public FloatBuffer floats() {
    return typed(ElementType.FLOAT).asFloatBuffer();
  }

  public DoubleBuffer doubles() {
    return typed(ElementType.DOUBLE).asDoubleBuffer();
  }

  public LongBuffer longs() {
    return typed(ElementType.INT64).asLongBuffer();
  }

  public IntBuffer ints() {
    return typed(ElementType.INT32).asIntBuffer();
  }

  /** A copy of the elements of a tensor of floats. */
  public float[] toFloats() {
    final FloatBuffer values = floats();
    final float[] copy = new float[values.remaining()];
    values.get(copy);
    return copy;
  }

  /** A copy of the elements of a tensor of INT64. */
  public long[] toLongs() {
    final LongBuffer values = longs();
    final long[] copy = new long[values.remaining()];
    values.get(copy);
    return copy;
  }

  @Override
  public String toString() {
    return name + " " + type + Arrays.toString(shape);
  }

  private ByteBuffer typed(ElementType expected) {
    if (type != expected) throw new IllegalStateException("'" + name + "' is of " + type + ", not of " + expected);
    return buffer();
  }

  static long elements(String name, long[] shape) {
    long elements = 1;
    for (long size : shape) {
      if (size < 0) throw new IllegalArgumentException("the shape of '" + name + "' has the size " + size);
      if (size > 0 && elements > Long.MAX_VALUE / 8 / size) {  // an element has at most 8 bytes
        throw new IllegalArgumentException("the shape " + Arrays.toString(shape) + " of '" + name
            + "' has more elements than a memory holds");
      }
      elements *= size;
    }
    return elements;
  }

  private static ByteBuffer allocate(String name, ElementType type, long[] shape, int values) {
    final long elements = elements(name, shape);
    if (elements != values) {
      throw new IllegalArgumentException("the array of '" + name + "' has " + values + " elements, its shape "
          + Arrays.toString(shape) + " " + elements);
    }
    return ByteBuffer.allocateDirect(Math.multiplyExact(values, type.bytes)).order(ByteOrder.nativeOrder());
  }

  // The action of the reclaimer has nothing to do: what it refers to stays reachable until then, which is its purpose.
  private static void keep(Validity memory) {}
}
