"""Low precision: formats against torch's own casts and vLLM's quantisers, and the two emulated engines."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerances import BITWISE, OTHER_LIBRARY_FLOAT32, algebra

from real.process import prepare

prepare()

import torch  # noqa: E402 - after its variables are set
from torch import Tensor  # noqa: E402
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM, StaticCache  # noqa: E402

from real import countdown  # noqa: E402
from real.evaluate import prompt_ids  # noqa: E402
from real.fp8 import hopper  # noqa: E402
from real.fp8.formats import FORMATS, quantise_groups, quantise_weight, round_to  # noqa: E402
from real.fp8.precision import PRECISIONS, choose  # noqa: E402
from real.fp8.qwen3 import emulate, quantised  # noqa: E402
from real.fp8.recipe import ENGINE_NAME, RECIPES, Recipe, recipe_of  # noqa: E402
from real.fp8.strength import STRENGTHS, measure  # noqa: E402
from real.model import flatten, load, row_logps  # noqa: E402
from real.samplers.torch_sampler import TorchSampler  # noqa: E402
from real.settings import TAU  # noqa: E402
from theory.experiment import Numerics  # noqa: E402

FLOATS = ["e4m3", "e5m2"]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def every_bfloat16() -> Tensor:
    """All finite bfloat16 numbers, as float32."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(torch.bfloat16).float()
    return numbers[numbers.isfinite()]


def matrix(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- formats


@pytest.mark.parametrize("name", FLOATS)
def test_rounding_is_torchs_own_cast_on_every_number_in_range(name: str) -> None:
    form = FORMATS[name]
    x = every_bfloat16()
    x = x[x.abs() <= form.largest]
    assert form.dtype is not None
    assert torch.equal(round_to(x, name), x.to(form.dtype).float())


@pytest.mark.parametrize("name", FLOATS)
def test_the_general_rounding_agrees_with_torchs_cast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """e2m1 has no cast to compare with, so the arithmetic it uses is checked on the formats that have one."""
    x = torch.cat([every_bfloat16(), matrix(4096) * 10, matrix(4096) * 1e-3])
    own = FORMATS[name]
    bare = type(own)(largest=own.largest, mantissa=own.mantissa, exponent=own.exponent)
    expected = round_to(x, name)
    monkeypatch.setattr("real.fp8.formats.FORMATS", {name: bare})
    assert torch.equal(round_to(x, name), expected)


def test_e2m1_rounds_to_the_nearest_of_its_sixteen_numbers_with_ties_to_even() -> None:
    x = torch.linspace(-8, 8, 3201)
    numbers = torch.cat([-E2M1.flip(0), E2M1])
    distance = (x[:, None] - numbers).abs()
    got = round_to(x, "e2m1")
    assert torch.isin(got, numbers).all()
    assert torch.equal((x - got).abs(), distance.amin(-1))
    # 2.5 lies between 2 (mantissa bit 0) and 3 (bit 1); .25 between 0 and .5, 5 between 4 and 6
    assert round_to(torch.tensor([2.5, 0.25, 5.0, 3.5]), "e2m1").tolist() == [2.0, 0.0, 4.0, 4.0]


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_saturates_keeps_nan_and_changes_nothing_twice(name: str) -> None:
    top = FORMATS[name].largest
    edge = torch.tensor([math.inf, -math.inf, 1e30, top * 1.01, -top, 0.0])
    assert round_to(edge, name).tolist() == [top, -top, top, top, -top, 0.0]
    assert round_to(torch.tensor([math.nan]), name).isnan().all()
    once = round_to(matrix(1000) * top / 3, name)
    assert torch.equal(round_to(once, name), once)


@given(st.sampled_from(["e4m3", "e5m2", "e2m1"]), st.floats(-1.0, 1.0), st.integers(-3, 2))
def test_a_normal_number_moves_by_at_most_half_a_unit_of_its_last_place(
    name: str, share: float, power: int
) -> None:
    form = FORMATS[name]
    x = torch.tensor([share * min(form.largest, 2.0**power)])
    bound = max(x.abs().item(), 2.0**form.exponent) * 2.0 ** -(form.mantissa + 1)
    assert (round_to(x, name) - x).abs().item() <= bound


def test_weight_blocks_have_their_own_scale_and_edges_are_smaller_blocks() -> None:
    weight = matrix(200, 300)
    weight[:128, :128] *= 100
    rounded = quantise_weight(weight, "e4m3")
    for rows in (slice(0, 128), slice(128, 200)):
        for columns in (slice(0, 128), slice(128, 256), slice(256, 300)):
            alone = quantise_weight(weight[rows, columns], "e4m3")
            assert torch.equal(rounded[rows, columns], alone)
    relative = (rounded - weight).norm() / weight.norm()
    # uniform error of a 3-bit mantissa: 2^-4 at most, about a third of it at the root mean square
    assert 0.5 * 2**-4 / math.sqrt(3) < relative < 2**-4 / math.sqrt(3)


@pytest.mark.parametrize(("shape", "group"), [((3, 5, 300), 128), ((7, 64), 128), ((4, 96), 32)])
def test_activation_groups_of_one_token_never_mix(shape: tuple[int, ...], group: int) -> None:
    x = matrix(*shape) * torch.logspace(-4, 4, shape[-1])
    rounded = quantise_groups(x, "e4m3", group=group)
    for start in range(0, shape[-1], group):
        part = slice(start, start + group)
        assert torch.equal(rounded[..., part], quantise_groups(x[..., part], "e4m3", group=group))
    assert torch.equal(rounded[0], quantise_groups(x[:1], "e4m3", group=group)[0])


def test_an_all_zero_tensor_stays_zero() -> None:
    assert torch.equal(quantise_weight(torch.zeros(130, 5), "e4m3"), torch.zeros(130, 5))
    assert torch.equal(quantise_groups(torch.zeros(2, 130), "e4m3"), torch.zeros(2, 130))


def test_power_of_two_scales_leave_powers_of_two_exact() -> None:
    weight = torch.exp2(torch.randint(-5, 5, (128, 128)).float())
    assert torch.equal(quantise_weight(weight, "e4m3", ue8m0=True), weight)
    assert not torch.equal(quantise_weight(weight * 1.37, "e4m3", ue8m0=True), weight * 1.37)


# ---- recipes


@pytest.mark.parametrize("recipe", [*RECIPES.values(), Recipe(noise=0.1, noise_seed=4, fresh=True)])
def test_a_recipe_survives_a_models_configuration(recipe: Recipe) -> None:
    config = recipe.engine_arguments()["hf_overrides"]["quantization_config"]
    assert config["quant_method"] == ENGINE_NAME
    assert Recipe.from_config(config) == recipe


def test_numerics_of_an_experiment_name_their_recipe() -> None:
    assert recipe_of(Numerics()) is None
    assert recipe_of(Numerics(kind="bf16")) is None
    assert recipe_of(Numerics(kind="fp8")) == RECIPES["fp8"]
    noise = recipe_of(Numerics(kind="weight-noise", scale=0.02, fresh=True), seed=5)
    assert noise == Recipe(noise=0.02, noise_seed=5, fresh=True)
    with pytest.raises(ValueError, match=r"no numerics 'laplace'; known: exact, bf16, weight-noise, fp8"):
        recipe_of(Numerics(kind="laplace", scale=0.1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weights": "fp7"}, "unknown format of weights 'fp7'"),
        ({"query": True}, "kv is None"),
        ({"block": (0, 4)}, "a side of block must be >= 1, got 0"),
        ({"noise": -1.0}, "must be finite and >= 0, got -1.0"),
    ],
)
def test_a_recipe_without_meaning_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)


# ---- precision by name


def test_real_fp8_is_refused_off_hopper_in_one_line_that_says_what_to_use() -> None:
    for hardware in (
        hopper.Hardware(name="no CUDA card"),
        hopper.Hardware(name="NVIDIA A100", capability=(8, 0)),
        hopper.Hardware(name="NVIDIA B200", capability=(10, 0)),
    ):
        with pytest.raises(ValueError, match=r"needs a Hopper card.*use precision 'fp8-emulated'") as refusal:
            choose("fp8", hardware=hardware)
        assert "\n" not in str(refusal.value)
        assert hardware.name in str(refusal.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA card")
def test_a_machine_without_a_card_refuses_real_fp8() -> None:
    with pytest.raises(ValueError, match="got no CUDA card"):
        choose("fp8")


def test_hopper_gets_block_fp8_with_an_fp8_cache_and_unrounded_scales() -> None:
    choice = choose("fp8", hardware=hopper.Hardware(name="NVIDIA H200", capability=(9, 0)))
    assert choice.arguments == {
        "dtype": "bfloat16",
        "quantization": "fp8_per_block",
        "kv_cache_dtype": "fp8",
    }
    assert choice.environment == {"VLLM_USE_DEEP_GEMM_E8M0": "0"}
    assert choice.recipe is None


def test_every_other_precision_runs_anywhere_and_an_unknown_one_names_them() -> None:
    nowhere = hopper.Hardware(name="no CUDA card")
    for name in PRECISIONS:
        if name != "fp8":
            assert "dtype" in choose(name, hardware=nowhere).arguments
    assert choose("int4-emulated").recipe == RECIPES["int4"]
    with pytest.raises(ValueError, match="unknown precision 'fp4'; known: fp32, bf16, fp8"):
        choose("fp4")


# ---- the torch engine


def small_qwen3(seed: int = 0) -> Qwen3ForCausalLM:
    """Untrained, with weights large enough for peaked rows; 192 stacked q, k, v rows span two blocks."""
    config = Qwen3Config(
        vocab_size=24,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.15,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).float().eval()


def tokens(rows: int = 8, length: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(2, 24, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def rows(model: Qwen3ForCausalLM, ids: Tensor, **arguments: Any) -> Tensor:
    return torch.log_softmax(model(input_ids=ids, **arguments).logits, -1)


def emulated(model: Qwen3ForCausalLM, recipe: Recipe) -> Qwen3ForCausalLM:
    twin = copy.deepcopy(model)
    emulate(twin, recipe)
    twin.load_state_dict(quantised(model.state_dict(), recipe))
    return twin


def test_head_embedding_and_norms_stay_as_they_are() -> None:
    weights = small_qwen3().state_dict()
    rounded = quantised(weights, RECIPES["fp8"])
    assert rounded.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, rounded[name]) == ("proj" not in name), name


def test_query_key_and_value_are_rounded_as_the_engine_stacks_them() -> None:
    weights = small_qwen3().state_dict()
    rounded = quantised(weights, RECIPES["fp8"])
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    stacked = quantise_weight(torch.cat([weights[n] for n in names]), "e4m3")
    assert torch.equal(torch.cat([rounded[n] for n in names]), stacked)


def test_each_rounding_of_fp8_moves_the_policy_further_from_the_trainer() -> None:
    model, ids = small_qwen3(), tokens(32)
    exact = rows(model, ids)
    distance = [
        (rows(emulated(model, recipe), ids) - exact).pow(2).mean().sqrt().item()
        for recipe in (Recipe(), *(RECIPES[n] for n in ("fp8-weights", "fp8-linear", "fp8", "int4")))
    ]
    assert distance[0] == BITWISE
    assert distance == sorted(distance)
    assert distance[1] > 0.01


def test_cached_decoding_and_one_pass_read_the_same_rounded_cache() -> None:
    model, ids = emulated(small_qwen3(), RECIPES["fp8"]), tokens()
    whole = rows(model, ids, use_cache=False)
    cache = DynamicCache(config=model.config)
    first = rows(model, ids[:, :5], past_key_values=cache, use_cache=True)
    steps = [rows(model, ids[:, t : t + 1], past_key_values=cache, use_cache=True) for t in range(5, 12)]
    # the products of a step sum in another order; a value on the edge of two e4m3 numbers may flip
    gap = (torch.cat([first, *steps], 1) - whole).abs()
    assert gap.median() < algebra(whole.median().item(), dtype="float32")
    assert gap.pow(2).mean().sqrt() < 0.1 * (whole - rows(small_qwen3(), ids)).pow(2).mean().sqrt()


def test_keys_and_values_in_the_cache_are_e4m3_numbers() -> None:
    model = emulated(small_qwen3(), RECIPES["fp8"])
    cache = DynamicCache(config=model.config)
    rows(model, tokens(), past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        for stored in (getattr(layer, "keys"), getattr(layer, "values")):  # noqa: B009 - untyped mixin
            assert torch.equal(stored, round_to(stored, "e4m3"))


def test_rounding_queries_changes_the_policy() -> None:
    model, ids = small_qwen3(), tokens()
    keys_only, all_three = (emulated(model, Recipe(kv="e4m3", query=query)) for query in (False, True))
    assert not torch.equal(rows(keys_only, ids), rows(all_three, ids))


def test_a_model_beside_an_emulated_one_is_untouched() -> None:
    model, ids = small_qwen3(), tokens()
    before = rows(model, ids)
    rows(emulated(model, RECIPES["fp8"]), ids)
    assert torch.equal(rows(model, ids), before)


def test_weight_noise_is_frozen_unless_fresh_and_has_the_size_asked_for() -> None:
    weights = small_qwen3().state_dict()
    name = "model.layers.1.mlp.down_proj.weight"
    frozen, fresh = (Recipe(noise=0.05, fresh=fresh) for fresh in (False, True))
    first, again = (quantised(weights, frozen, draw=d)[name] for d in (0, 7))
    assert torch.equal(first, again)
    assert not torch.equal(quantised(weights, fresh, draw=7)[name], quantised(weights, fresh, draw=8)[name])
    assert not torch.equal(quantised(weights, Recipe(noise=0.05, noise_seed=1))[name], first)
    relative = (first / weights[name] - 1)[weights[name].abs() > 1e-6]
    assert abs(relative.std().item() / 0.05 - 1) < 4 / math.sqrt(2 * len(relative))  # 4 standard errors


def test_what_cannot_be_emulated_is_refused() -> None:
    with pytest.raises(ValueError, match="call model"):
        emulate(small_qwen3().bfloat16(), RECIPES["fp8"])
    twin = emulated(small_qwen3(), RECIPES["fp8"])
    with pytest.raises(ValueError, match="emulated already"):
        emulate(twin, RECIPES["fp8"])
    with pytest.raises(ValueError, match="rounds a DynamicCache, got StaticCache"):
        rows(twin, tokens(), past_key_values=StaticCache(config=twin.config, max_cache_len=16))
    with pytest.raises(ValueError, match="state dict of a Qwen3"):
        quantised({"weight": torch.zeros(2, 2)}, RECIPES["fp8"])


def test_coarser_formats_move_the_mini_model_further_and_rare_tokens_most() -> None:
    sizes = ["fp8-weights", "fp8-linear", "fp8", "e5m2", "int4"]
    found = [measure(TorchSampler(recipe=STRENGTHS[name])) for name in sizes]
    assert [s.mean_abs for s in found] == sorted(s.mean_abs for s in found)
    for strength in found:
        rare, common = strength.by_probability[1], strength.by_probability[4]
        assert rare > 10 * common
        assert strength.kurtosis > 5
    exact = measure(TorchSampler(), prompts=32)
    assert exact.rms < OTHER_LIBRARY_FLOAT32["rtol"]


# ---- real kernels


@pytest.mark.gpu
def test_the_scaled_product_of_torch_agrees_with_the_emulation() -> None:
    """torch._scaled_mm with one scale a row and a column: the same rounding, another accumulation."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("torch._scaled_mm needs a CUDA card of compute capability 8.9; this machine has none")
    x, weight = matrix(64, 256).cuda(), (matrix(128, 256, seed=1) * 0.05).cuda()
    x_scale = x.abs().amax(-1, keepdim=True) / 448
    w_scale = weight.abs().amax(-1, keepdim=True) / 448
    product = torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        (x / x_scale).to(torch.float8_e4m3fn),
        (weight * (1 / w_scale)).to(torch.float8_e4m3fn).t(),
        scale_a=x_scale,
        scale_b=w_scale.t().contiguous(),
        out_dtype=torch.bfloat16,
    ).float()
    emulation = quantise_groups(x, "e4m3", group=256) @ quantise_weight(weight, "e4m3", block=(1, 256)).t()
    # bfloat16 output, and tensor cores that accumulate with 14 bits
    assert (product - emulation).norm() / emulation.norm() < 2**-8


# ---- the vLLM engine


def engine(folder: Path, **arguments: Any) -> Any:
    from vllm import LLM

    return LLM(
        str(folder),
        dtype="float32",
        enforce_eager=True,
        seed=0,
        max_model_len=64,
        max_num_seqs=64,
        kv_cache_memory_bytes=2**26,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        max_num_batched_tokens=2048,
        logprobs_mode="processed_logprobs",
        use_tqdm_on_load=False,
        disable_log_stats=True,
        skip_tokenizer_init=True,
        **arguments,
    )


def sampled(llm: Any, prompts: Tensor, length: int = 16) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probs under the engine, shape (B, length)."""
    from vllm import SamplingParams

    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts.tolist()],
        [
            SamplingParams(max_tokens=length, seed=i, ignore_eos=True, logprobs=0, detokenize=False)
            for i in range(len(prompts))
        ],
        use_tqdm=False,
    )
    choices = [output.outputs[0] for output in outputs]
    logmu = [[row[t].logprob for row, t in zip(c.logprobs, c.token_ids, strict=True)] for c in choices]
    return torch.tensor([c.token_ids for c in choices]), torch.tensor(logmu)


def gap(logmu: Tensor, model: Qwen3ForCausalLM, prompts: Tensor, response: Tensor) -> Tensor:
    """log mu - log pi of the model, at the sampled tokens."""
    ids = torch.cat([prompts, response], 1)
    logpi = rows(model, ids, use_cache=False)[:, prompts.shape[1] - 1 : -1]
    return logmu - logpi.gather(-1, response[..., None])[..., 0]


def same_math(logmu: Tensor) -> float:
    """Absolute tolerance of the same float32 network in two libraries."""
    return OTHER_LIBRARY_FLOAT32["rtol"] * logmu.abs().max().item()


def rms(x: Tensor) -> float:
    return x.pow(2).mean().sqrt().item()


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers, inside vLLM's import
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # swig types, inside vLLM's import
@pytest.mark.filterwarnings("ignore::UserWarning")  # vLLM's import of torch internals
class TestVllm:
    """vLLM on whatever this machine has; one engine a recipe."""

    @pytest.fixture(autouse=True)
    def _needs_vllm(self) -> None:
        pytest.importorskip("vllm")

    def test_weights_are_rounded_bit_for_bit_as_vllm_does(self) -> None:
        from vllm.utils.deep_gemm import per_block_cast_to_fp8

        for weight in (matrix(300, 520, dtype=torch.bfloat16) * 0.02, matrix(64, 64) * 0.05):
            numbers, scales = per_block_cast_to_fp8(weight)
            wide = scales.repeat_interleave(128, 0)[: len(weight)].repeat_interleave(128, 1)
            theirs = numbers.float() * wide[:, : weight.shape[1]]
            assert torch.equal(quantise_weight(weight, "e4m3"), theirs)

    def test_activations_are_rounded_bit_for_bit_as_vllm_does(self) -> None:
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
        from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

        x = matrix(7, 512, dtype=torch.bfloat16)
        with set_current_vllm_config(VllmConfig()):
            numbers, scales = QuantFP8(static=False, group_shape=GroupShape(1, 128)).forward_native(x)
        theirs = numbers.float() * scales.repeat_interleave(128, 1)
        assert torch.equal(quantise_groups(x, "e4m3"), theirs)

    @pytest.mark.parametrize(
        ("name", "recipe"),
        [
            ("fp8-weights", RECIPES["fp8-weights"]),
            ("fp8", RECIPES["fp8"]),
            ("weight noise", Recipe(noise=0.02, noise_seed=3, fresh=True)),
        ],
    )
    def test_vllm_and_torch_agree_at_load_and_after_a_sync(
        self, name: str, recipe: Recipe, tmp_path: Path
    ) -> None:
        import real.fp8.emulated  # noqa: F401 - registers the quantisation

        model, prompts = small_qwen3(), tokens(32, 7)
        model.save_pretrained(tmp_path)
        llm = engine(tmp_path, **recipe.engine_arguments())
        for draw, seed in enumerate((0, 5)):
            trainer = small_qwen3(seed)
            if draw:
                weights = trainer.state_dict()
                llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
            twin = copy.deepcopy(trainer)
            emulate(twin, recipe)
            twin.load_state_dict(quantised(trainer.state_dict(), recipe, draw=draw))
            response, logmu = sampled(llm, prompts)
            engines, format_gap = (gap(logmu, m, prompts, response) for m in (twin, trainer))
            print(
                f"{name}, load {draw}: vLLM - torch rms {rms(engines):.1e} max {engines.abs().max():.1e}; "
                f"vLLM - trainer rms {rms(format_gap):.1e} max {format_gap.abs().max():.1e}"
            )
            assert rms(format_gap) > 0.02
            if recipe.activations is None:  # the same products in another order
                assert engines.abs().max() < same_math(logmu)
            else:  # an ulp before a rounding may flip it: rare, and small beside the rounding itself
                assert engines.abs().median() < same_math(logmu)
                assert rms(engines) < 0.15 * rms(format_gap)

    @pytest.mark.parametrize("name", ["fp8", "int4"])
    def test_the_two_engines_agree_on_the_mini_model(self, name: str) -> None:
        """Whole rows at every prefix of real answers: rms and largest gap, beside the rounding's own."""
        from real.samplers.vllm_sampler import VllmSampler

        trainer = load()
        flatten(trainer, TAU)
        asked = prompt_ids(countdown.problems(64, seed=3))
        vllm, twin = VllmSampler(recipe=RECIPES[name]), TorchSampler(recipe=RECIPES[name])
        for sampler in (vllm, twin):
            sampler.sync(trainer.state_dict(), 0)
        rollout = vllm.sample(asked, 4, seed=0)
        vllm.close()
        mask = rollout.mask_BT
        with torch.no_grad():
            theirs, ours, exact = (
                row[mask]
                for row in (
                    rollout.logmu_BTV,
                    row_logps(twin.model, rollout.prompt_CP, rollout.response_BT),
                    row_logps(trainer, rollout.prompt_CP, rollout.response_BT),
                )
            )
        between, rounding = theirs - ours, theirs - exact
        print(
            f"{name}, mini-Qwen3, {len(theirs)} rows: vLLM - torch rms {rms(between):.1e} "
            f"max {between.abs().max():.1e}; vLLM - trainer rms {rms(rounding):.1e} "
            f"max {rounding.abs().max():.1e}"
        )
        assert between.abs().median() < same_math(theirs)
        assert rms(between) < 0.15 * rms(rounding)

    def test_an_unquantised_engine_beside_an_emulated_one_keeps_its_arithmetic(self, tmp_path: Path) -> None:
        import real.fp8.emulated  # noqa: F401 - registers the quantisation

        model, prompts = small_qwen3(), tokens(16, 7)
        model.save_pretrained(tmp_path)
        rounding = engine(tmp_path, **RECIPES["fp8"].engine_arguments())
        plain = engine(tmp_path)
        response, logmu = sampled(plain, prompts)
        assert gap(logmu, model, prompts, response).abs().max() < same_math(logmu)
        response, logmu = sampled(rounding, prompts)
        assert rms(gap(logmu, model, prompts, response)) > 0.02
