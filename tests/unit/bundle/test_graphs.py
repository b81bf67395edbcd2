from dragoman.bundle.graphs import (
    WIDTH_STEP,
    Dimensions,
    TensorSpec,
    bind_axes,
    decoder_spec,
    encoder_spec,
    padded_width,
    shape_faults,
    updated,
)

SIZE = Dimensions(encoder_layers=2, decoder_layers=3, heads=4, head_width=8, d_model=32, target_vocabulary=340)


def test_each_decoder_layer_has_its_cross_keys_from_the_encoder() -> None:
    made = {spec.name: spec.axes for spec in encoder_spec(SIZE, "float32").outputs if spec.name != "hidden"}
    inputs = decoder_spec(SIZE, "float32", logits=False).inputs
    taken = {spec.name: spec.axes for spec in inputs if "source" in spec.axes}
    assert made == taken
    assert len(made) == 2 * SIZE.decoder_layers


def test_each_cache_has_the_same_axes_as_input_and_output() -> None:
    spec = decoder_spec(SIZE, "float32", logits=False)
    caches = [tensor for tensor in spec.inputs if "capacity" in tensor.axes]
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    assert len(caches) == 2 * SIZE.decoder_layers
    assert all(outputs[updated(cache.name)].axes == cache.axes for cache in caches)


def test_logits_are_an_output_only_on_request() -> None:
    assert "logits" not in [tensor.name for tensor in decoder_spec(SIZE, "float32", logits=False).outputs]
    (logits,) = [tensor for tensor in decoder_spec(SIZE, "float32", logits=True).outputs if tensor.name == "logits"]
    assert logits.axes == ("batch", 340)


def test_a_frozen_axis_is_reported_with_its_tensor() -> None:
    spec = TensorSpec("hidden", "float32", ("batch", "source", 32))
    assert shape_faults(spec, "float32", ("batch", "source", 32)) == []
    (fault,) = shape_faults(spec, "float32", ("batch", 7, 32))
    assert fault == "hidden has axes ['batch', 7, 32], should have ['batch', 'source', 32]"
    (fault,) = shape_faults(spec, "float16", ("batch", "source", 32))
    assert fault == "hidden is float16, should be float32"


def test_named_axes_take_the_given_sizes() -> None:
    spec = TensorSpec("hidden", "float32", ("batch", "source", 32))
    assert bind_axes(spec, {"batch": 2, "source": 8}) == (2, 8, 32)


def test_widths_are_multiples_of_the_step() -> None:
    assert [padded_width(n) for n in (1, WIDTH_STEP, WIDTH_STEP + 1)] == [WIDTH_STEP, WIDTH_STEP, 2 * WIDTH_STEP]
