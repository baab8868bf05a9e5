//! Compares hashes with those of CPython.
//!
//! A comment at each hash has the expression that computed it, under CPython 3.11.7, cbor2 6.2.1 and xxhash 4.1.0,
//! after
//!
//! ```python
//! def new(text): return text.encode().decode()  # as decoding a message does
//! def pickled(value): return pickle.dumps(value, protocol=5)
//! def cbor(value): return cbor2.dumps(value, canonical=True)
//! def sha256(data): return hashlib.sha256(data).hexdigest()
//! def xxh(data): return xxhash.xxh3_128_hexdigest(data)
//! N = bytes.fromhex(sha256(pickled("vllm-none-hash")))
//! C = bytes.fromhex(sha256(cbor("vllm-none-hash")))
//! T = tuple(range(1, 17))
//! D = hashlib.sha256(b"embeds").digest()
//! ```

use vcr_base::block_hash::HashAlgorithm::{Sha256, Sha256Cbor, Xxhash, XxhashCbor};
use vcr_base::block_hash::HashRules::{V0_27, V0_29, V0_31};
use vcr_base::block_hash::{BlockHasher, ExtraKey, HashAlgorithm, HashRules, Seed, UnknownAlgorithm};

const UNSET: Seed<'_> = Seed::Unset { random: [0; 32] };
const T: [u32; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
/// `D` of the expressions.
const EMBEDS: [u8; 32] = *b"\x80\x4e\x6a\x0a\x97\x8d\x59\x90\x15\x79\x2e\x2a\xed\x82\x79\xee\
\xfe\x7a\x9c\xa6\xb8\x1f\x57\x2c\x31\xda\x48\xfe\x2d\x2c\x0f\xa9";

const AD1: ExtraKey<'_> = ExtraKey::Lora { name: "ad1", path: "/adapters/ad1" };
const S1: ExtraKey<'_> = ExtraKey::CacheSalt("s1");

fn lora<'a>(name: &'a str, path: &'a str) -> ExtraKey<'a> {
    ExtraKey::Lora { name, path }
}

fn mm(identifier: &str, offset: i64) -> ExtraKey<'_> {
    ExtraKey::MultiModal { identifier, offset }
}

fn none_hash(algorithm: HashAlgorithm, rules: HashRules, seed: Seed<'_>) -> String {
    format!("{:?}", BlockHasher::new(algorithm, rules, seed).none_hash())
}

/// The hash of a first block with the fixed seed.
fn first_block(algorithm: HashAlgorithm, rules: HashRules, tokens: &[u32], extra: &[ExtraKey<'_>]) -> String {
    format!("{:?}", BlockHasher::new(algorithm, rules, UNSET).hash_block(None, tokens, extra))
}

/// Hashes of a first block with tokens `T`, with bare and with tagged keys.
fn both_styles(extra: &[ExtraKey<'_>]) -> [String; 2] {
    [V0_29, V0_31].map(|rules| first_block(Sha256, rules, &T, extra))
}

fn tagged(extra: &[ExtraKey<'_>]) -> String {
    first_block(Sha256, V0_31, &T, extra)
}

fn of_tokens(tokens: &[u32]) -> String {
    first_block(Sha256, V0_31, tokens, &[])
}

#[test]
fn algorithms_have_the_names_of_vllm() {
    for (algorithm, name) in
        [(Sha256, "sha256"), (Sha256Cbor, "sha256_cbor"), (Xxhash, "xxhash"), (XxhashCbor, "xxhash_cbor")]
    {
        assert_eq!(algorithm.to_string(), name);
        assert_eq!(name.parse(), Ok(algorithm));
    }
    assert_eq!(HashAlgorithm::default(), Sha256);
    let unknown = "builtin".parse::<HashAlgorithm>().unwrap_err();
    assert_eq!(unknown, UnknownAlgorithm { name: "builtin".to_owned() });
    assert_eq!(
        unknown.to_string(),
        "invalid hash algorithm `builtin`: expected sha256, sha256_cbor, xxhash or xxhash_cbor"
    );
}

#[test]
fn cryptographic_algorithms_start_from_a_fixed_seed_since_0_29() {
    for rules in [V0_29, V0_31] {
        assert!(!BlockHasher::draws_seed(Sha256, rules) && !BlockHasher::draws_seed(Sha256Cbor, rules));
        // sha256(pickled("vllm-none-hash"))
        let expected = "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198";
        assert_eq!(none_hash(Sha256, rules, UNSET), expected);
        // sha256(cbor("vllm-none-hash"))
        let expected = "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0";
        assert_eq!(none_hash(Sha256Cbor, rules, UNSET), expected);
    }
}

#[test]
fn other_algorithms_hash_random_bytes_as_hexadecimal_since_0_29() {
    for rules in [V0_29, V0_31] {
        assert!(BlockHasher::draws_seed(Xxhash, rules) && BlockHasher::draws_seed(XxhashCbor, rules));
        // xxh(pickled("00" * 32))
        assert_eq!(none_hash(Xxhash, rules, UNSET), "43edfd91ad8b502b60f9a2654a2ba38c");
        // xxh(cbor("00" * 32))
        assert_eq!(none_hash(XxhashCbor, rules, UNSET), "975d84dde5ca6dffbc7a952824f648c9");
    }
}

#[test]
fn before_0_29_random_bytes_are_the_hash_whatever_the_algorithm() {
    let block = |algorithm| first_block(algorithm, V0_27, &T, &[]);
    for algorithm in [Sha256, Sha256Cbor, Xxhash, XxhashCbor] {
        assert!(BlockHasher::draws_seed(algorithm, V0_27));
        assert_eq!(none_hash(algorithm, V0_27, UNSET), "00".repeat(32));
    }
    // sha256(pickled((bytes(32), T, None)))
    assert_eq!(block(Sha256), "b422d27a64759d1f3c0cbe4261a10c8705063de77050288ec0b6cce2eece5497");
    // xxh(pickled((bytes(32), T, None)))
    assert_eq!(block(Xxhash), "82175d5d809119439b749657078fa5c1");
    // xxh(cbor((bytes(32), T, None)))
    assert_eq!(block(XxhashCbor), "0cd2990c889124023fd5cf245f40f086");
}

#[test]
fn the_seed_of_python_goes_before_all_else() {
    for rules in [V0_27, V0_29, V0_31] {
        let none_hash = |algorithm, seed| none_hash(algorithm, rules, Seed::PythonHashSeed(seed));
        // sha256(pickled("0"))
        let expected = "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c";
        assert_eq!(none_hash(Sha256, "0"), expected);
        // sha256(pickled(""))
        let expected = "3279c4b947f331d055c47442171c9ea17712596bd7fe094c31d4a5d432b42d68";
        assert_eq!(none_hash(Sha256, ""), expected);
        // sha256(cbor("0"))
        let expected = "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e";
        assert_eq!(none_hash(Sha256Cbor, "0"), expected);
        // xxh(pickled("0"))
        assert_eq!(none_hash(Xxhash, "0"), "6fb31cc38bba6066183f7f2104b9c051");
        // xxh(cbor("0"))
        assert_eq!(none_hash(XxhashCbor, "0"), "1ebe36576dcb573f26b99533a20aaeca");
    }
}

#[test]
fn blocks_are_chained() {
    let mut hasher = BlockHasher::new(Sha256, V0_31, UNSET);
    let first = hasher.hash_block(None, &T, &[]);
    // sha256(pickled((N, T, None)))
    assert_eq!(format!("{first:?}"), "7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf");
    assert_eq!(first.as_bytes().len(), 32);
    assert_eq!(first.low_u64(), 0x137b_b037_547f_4caf);
    let second = hasher.hash_block(Some(&first), &[256, 65536, 151_644, 5].repeat(4), &[]);
    // sha256(pickled((bytes.fromhex("7b25...4caf"), (256, 65536, 151644, 5) * 4, None)))
    assert_eq!(format!("{second:?}"), "cfa1ddde0cc323f6c7412b6da4ee623d2841abc948a82b782ead40fddbb84081");
    // Without a parent, `NONE_HASH` is the parent.
    let none_hash = *hasher.none_hash();
    assert_eq!(hasher.hash_block(Some(&none_hash), &T, &[]), first);
}

#[test]
fn cbor_is_canonical() {
    let block = |tokens, extra| first_block(Sha256Cbor, V0_31, tokens, extra);
    // sha256(cbor((C, T, None)))
    assert_eq!(block(&T, &[]), "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682");
    // sha256(cbor((C, (23, 24, 255, 256, 65535, 65536, 2**31, 2**32 - 1), None)))
    let tokens = [23, 24, 255, 256, 65535, 65536, 1 << 31, u32::MAX];
    assert_eq!(block(&tokens, &[]), "aba7c1850970b3ccb0271d95ed3dddab1d3a4f0e3e667b000dace6d8c827b016");
    // sha256(cbor((C, T, (("lora", new("ad1"), new("/adapters/ad1")),))))
    assert_eq!(block(&T, &[AD1]), "e180d86ba64fda37f833e521e6bc088dc0e17a44c4da3788ca113440b9022a35");
    // sha256(cbor((C, T, (("mm", new("img"), -300), ("mm", new("img"), 9)))))
    let twice = [mm("img", -300), mm("img", 9)];
    assert_eq!(block(&T, &twice), "2e5f7df66744fdba1510a03c855d29ce0a5d881fbc63776fb40ae165034b2a4c");
    // sha256(cbor((C, T, (("lora", new("ad1"), new("/adapters/ad1")), ("mm", new("img"), 3),
    //                     ("cache_salt", new("s1")), ("prompt_embeds", D)))))
    let all = [AD1, mm("img", 3), S1, ExtraKey::PromptEmbeds(&EMBEDS)];
    assert_eq!(block(&T, &all), "9d7b2b5714120c59437a355cab26f79044ea1fc225ec374a409fc5b9e61bf984");
    // sha256(cbor((C, T, (new("ad1"),))))
    let bare = first_block(Sha256Cbor, V0_29, &T, &[AD1]);
    assert_eq!(bare, "c5990238b1ab5bcf9e96811868deff819687b0a21d3c3f2de54bbd92b9351817");
}

#[test]
fn xxh3_has_128_bits() {
    let hasher = |algorithm| BlockHasher::new(algorithm, V0_31, Seed::PythonHashSeed("0"));
    let mut pickling = hasher(Xxhash);
    // xxh(pickled((bytes.fromhex(xxh(pickled("0"))), T, None)))
    let block = pickling.hash_block(None, &T, &[]);
    assert_eq!(format!("{block:?}"), "6ba7d7fc1608e5f0a4612b1b0c87458f");
    assert_eq!(block.as_bytes().len(), 16);
    assert_eq!(block.low_u64(), 0xa461_2b1b_0c87_458f);
    // xxh(pickled((bytes.fromhex(xxh(pickled("0"))), T, (("cache_salt", new("s1")),))))
    let salted = pickling.hash_block(None, &T, &[S1]);
    assert_eq!(format!("{salted:?}"), "30a33e47ae6de2a65329762bdc924df6");
    // xxh(pickled((bytes.fromhex(xxh(pickled("0"))), (70000,) * 64, None)))
    let long = pickling.hash_block(None, &[70000; 64], &[]);
    assert_eq!(format!("{long:?}"), "e0c7e90f5d2928e5e51a9262e65d26b4");
    // xxh(cbor((bytes.fromhex(xxh(cbor("0"))), T, None)))
    let cbor = hasher(XxhashCbor).hash_block(None, &T, &[]);
    assert_eq!(format!("{cbor:?}"), "c2d7a75070fc6d6b0c3fb0af456c1009");
}

#[test]
fn every_size_of_integer_is_written_as_python_does() {
    // sha256(pickled((N, (255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1), None)))
    let tokens = [255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, u32::MAX];
    assert_eq!(of_tokens(&tokens), "90e5666f6519af3d403973f59939336300d3526a986aa859163cfc10ee28c19a");
}

#[test]
fn every_size_of_tuple_is_written_as_python_does() {
    // sha256(pickled((N, (), None)))
    assert_eq!(of_tokens(&[]), "6b385b8167a0f2e87a4d0ef604c1a1398e533330e4b2ad529494414c5810ed15");
    // sha256(pickled((N, (7,), None)))
    assert_eq!(of_tokens(&[7]), "ad42afba4a7360560993bf7d42e4779856653b1fa26a67489cc9776a59d18d26");
    // sha256(pickled((N, (7, 8), None)))
    assert_eq!(of_tokens(&[7, 8]), "a8742cb38b8a9b222a17320a9081a41d836383b12af2f6be76524759faa6b2c2");
    // sha256(pickled((N, (7, 8, 9), None)))
    assert_eq!(of_tokens(&[7, 8, 9]), "61c80e2a1ad74012262976559efa3795a454e4aa5aad08e22dc574b13b30197d");
}

#[test]
fn each_extra_key_alone_in_both_styles() {
    let [bare, tagged] = both_styles(&[AD1]);
    // sha256(pickled((N, T, (new("ad1"),))))
    assert_eq!(bare, "bc8d09cb8f72d5f69af51b631528200036e19444277063d859111b956622fa2c");
    // sha256(pickled((N, T, (("lora", new("ad1"), new("/adapters/ad1")),))))
    assert_eq!(tagged, "23cd0b03c78cd7be4f7fbda115f4a80bee92d2120a82fdc8f43214f1367d51fd");

    let [bare, tagged] = both_styles(&[mm("img", 3)]);
    // sha256(pickled((N, T, ((new("img"), 3),))))
    assert_eq!(bare, "ebe4275b3f4c1283a17172b4b58ed6ee4ae63ebdd4e619c4e9664642c95c37f3");
    // sha256(pickled((N, T, (("mm", new("img"), 3),))))
    assert_eq!(tagged, "ddc724ff2b2dc6a22f2a81a667aba548f1d3d8f7400b60274bc38f237f29d7f4");

    let [bare, tagged] = both_styles(&[S1]);
    // sha256(pickled((N, T, (new("s1"),))))
    assert_eq!(bare, "283535f26716fbca769ca226294be3810d7d0d1ae79287685d67253eccbeb19c");
    // sha256(pickled((N, T, (("cache_salt", new("s1")),))))
    assert_eq!(tagged, "c5fa716552a9b0b4fbf063f2c41dc87ba27d43d6df41604691d811f0264dfc11");

    let [bare, tagged] = both_styles(&[ExtraKey::PromptEmbeds(&EMBEDS)]);
    // sha256(pickled((N, T, (D,))))
    assert_eq!(bare, "567845ddf8d878d182359fcdbaa8c37f88cbd81350763f35d42007a40f5c2195");
    // sha256(pickled((N, T, (("prompt_embeds", D),))))
    assert_eq!(tagged, "683f8b4d63c2160a96730a4e485b0bcf8ad3453f67c0d5c5294393e7cfaea40e");
}

#[test]
fn two_and_four_extra_keys_in_both_styles() {
    let [bare, tagged] = both_styles(&[mm("img", -5), mm("img", 9)]);
    // sha256(pickled((N, T, ((new("img"), -5), (new("img"), 9)))))
    assert_eq!(bare, "f320fbf0bd4b141e98e8ade4d182043abf43175472bbaaf0fd69e17525b462c6");
    // sha256(pickled((N, T, (("mm", new("img"), -5), ("mm", new("img"), 9)))))
    assert_eq!(tagged, "ef808c56bf2caf807bdc10cbf0f33354778ddc7677319e2c560614cf3740723e");

    let [bare, tagged] = both_styles(&[AD1, mm("img", 3), S1, ExtraKey::PromptEmbeds(&EMBEDS)]);
    // sha256(pickled((N, T, (new("ad1"), (new("img"), 3), new("s1"), D))))
    assert_eq!(bare, "5320abbf58af5c8e56cfd9933db60620e8baa21667090a3310e06eea7c355bac");
    // sha256(pickled((N, T, (("lora", new("ad1"), new("/adapters/ad1")), ("mm", new("img"), 3),
    //                        ("cache_salt", new("s1")), ("prompt_embeds", D)))))
    assert_eq!(tagged, "8f1b028ec195583d411eca0747630226d9ec4f2ff413dc264ee0e8f5008467ac");
}

#[test]
fn equal_strings_are_references_only_where_they_are_one_object() {
    // sha256(pickled((N, T, (("lora", new("ad1"), new("ad1")),))))
    let expected = "c5097db24f6eb3b586b35169171a5f3d7fa2244936c3c3ec0113f372de59e9d1";
    assert_eq!(tagged(&[lora("ad1", "ad1")]), expected);
    // sha256(pickled((N, T, (("lora", new("a"), new("a")),))))
    let expected = "337ab3204b34e69f2e2c1fb511b4c5a76bcb492fcfb450fb515224d3d5add5a6";
    assert_eq!(tagged(&[lora("a", "a")]), expected);
    // sha256(pickled((N, T, (("lora", new("ÿ"), new("ÿ")),))))
    let expected = "ca4f99660be5fc42d7869ea9fb330ae13e7a08818efd27c9ab957bb97ffa43ae";
    assert_eq!(tagged(&[lora("ÿ", "ÿ")]), expected);
    // sha256(pickled((N, T, (("lora", new("ā"), new("ā")),))))
    let expected = "581fe16d6568a9109c1d33c865fbf0ac2e74ef2f29ddde7628cb36015d5020fa";
    assert_eq!(tagged(&[lora("ā", "ā")]), expected);
    // sha256(pickled((N, T, (("lora", new("mm"), new("p")), ("mm", new("img"), 3)))))
    let expected = "92e28aea38ef8ff697c8128a6fc71c43cd464cb33823bed725520ecace20c1bf";
    assert_eq!(tagged(&[lora("mm", "p"), mm("img", 3)]), expected);
    // sha256(pickled((N, T, (new("a"), new("a")))))
    let [bare, _] = both_styles(&[lora("a", ""), ExtraKey::CacheSalt("a")]);
    assert_eq!(bare, "7a1c5027bf66afaf85e0d5926c0b5fe0bd9bd699820224fbf93935c61071f861");
    // sha256(pickled((N, T, tuple(("mm", new("s" if i > 130 else "img"), i) for i in range(133)))))
    let many: Vec<ExtraKey<'_>> = (0..133).map(|i| mm(if i > 130 { "s" } else { "img" }, i)).collect();
    assert_eq!(tagged(&many), "9095c707eec34784c340d04a18f203d6546f98c62b7cb76b5ef680333c12df04");
}

#[test]
fn lengths_of_strings_are_in_bytes() {
    // sha256(pickled((N, T, (("cache_salt", new("é" * 127 + "s")),))))
    let salt = "é".repeat(127) + "s";
    let expected = "39df5231fbbeee320b5ce142834c698429dda1de911b74ab1d03da0bdd8ffe1b";
    assert_eq!(tagged(&[ExtraKey::CacheSalt(&salt)]), expected);
    // sha256(pickled((N, T, (("cache_salt", new("é" * 128)),))))
    let salt = "é".repeat(128);
    let expected = "5c23ed399781abcc504b41eb5e0bdc512bc73724dc0fcde8ce80215741c39eb5";
    assert_eq!(tagged(&[ExtraKey::CacheSalt(&salt)]), expected);
}

#[test]
fn long_pickles_are_framed_as_python_does() {
    // sha256(pickled((N, tuple(range(70000, 90000)), None)))
    let tokens: Vec<u32> = (70000..90000).collect();
    assert_eq!(of_tokens(&tokens), "60861c62c47df764f50c786fb38f502d3e5493a188ffee4db4fb8fb5f3674157");
    // The last token begins at 65,536 bytes and opens a frame.
    // sha256(pickled((N, (70000,) * 13_100 + (7,), None)))
    let tokens = [vec![70000; 13_100], vec![7]].concat();
    assert_eq!(of_tokens(&tokens), "93c36be8731d32065ddce2f95e115b55407ed6fcc1439f37bde9035bcd0c62a6");
    // The second last token begins at 65,535 bytes; the last one opens a frame.
    // sha256(pickled((N, (70000,) * 13_098 + (300,) * 3 + (7, 7), None)))
    let tokens = [vec![70000; 13_098], vec![300; 3], vec![7; 2]].concat();
    assert_eq!(of_tokens(&tokens), "80af009dedec82750cb4f65de62be6eb7ed5d3c56a2870afba7292bf698f1389");
}

#[test]
fn long_strings_lie_between_frames() {
    // sha256(pickled((N, T, (("cache_salt", new("s" * 65535)),))))
    let salt = "s".repeat(65535);
    let expected = "23db02e40d405cac2dcbb81de05ab62af0a64534825b334fae344d557ba51cdb";
    assert_eq!(tagged(&[ExtraKey::CacheSalt(&salt)]), expected);
    // sha256(pickled((N, T, (("cache_salt", new("s" * 65536)),))))
    let salt = "s".repeat(65536);
    let expected = "12419f21ce36f768df866623e2370e595b902d3c06b48f4bb32630fe5193b1c0";
    assert_eq!(tagged(&[ExtraKey::CacheSalt(&salt)]), expected);
    // Between two long strings, one byte is too little for a frame.
    // sha256(pickled((N, T, (("lora", new("n" * 65536), new("p" * 65536)),))))
    let (name, path) = ("n".repeat(65536), "p".repeat(65536));
    let expected = "698009fc19945b3b7900c5ee690b827e46e42aa5edb4c75df92c551def883680";
    assert_eq!(tagged(&[lora(&name, &path)]), expected);
}

#[test]
fn a_hasher_keeps_nothing_of_the_last_block() {
    let mut hasher = BlockHasher::new(Sha256, V0_31, UNSET);
    let path = "p".repeat(65536);
    let plain = hasher.hash_block(None, &T, &[]);
    let with_keys = hasher.hash_block(None, &T, &[lora("a", &path), mm("a", 0), mm("a", 8)]);
    assert_ne!(plain, with_keys);
    assert_eq!(hasher.hash_block(None, &T, &[]), plain);
    assert_eq!(hasher.hash_block(None, &T, &[lora("a", &path), mm("a", 0), mm("a", 8)]), with_keys);
}

#[test]
#[should_panic(expected = "extra keys out of order")]
fn keys_out_of_order_are_refused() {
    first_block(Sha256, V0_31, &T, &[S1, AD1]);
}

/// Hashes of tokens 1 to 39 in blocks of 16, as in vLLM 0.33. The cases have the algorithm, the number of lookahead
/// tokens, whether there is an adapter, and whether there is a salt and a four-token image.
#[test]
fn hashes_cover_tokens_behind_their_block() {
    let tokens: Vec<u32> = (1..40).collect();
    let cases: [(HashAlgorithm, usize, bool, bool, [&str; 2]); 9] = [
        (
            Sha256,
            1,
            false,
            false,
            [
                "aaae00ed04de962ecfa556ea7d0016da9c2e4256e129f4b69593b533e9d40647",
                "58b386868a15416b3dd382b5bd7eb6552748d7637b726c2090effe8de0533782",
            ],
        ),
        (
            Sha256,
            1,
            false,
            true,
            [
                "adda9916a25262381e5e92a4adf04c4e4314ac0155181cde6c4897f2b44da437",
                "06ab429fc66d86bc606f376afaa333fea050979ca8d5822e73c592f17523dd44",
            ],
        ),
        (
            Sha256,
            1,
            true,
            false,
            [
                "bb29f288d0e388900db269180b319d124e9e2c721df7d3b3af6ec0694f626148",
                "ae5912ccdf88221f0d0cb42bf3e6f0871aa8ae88bf311c3e0f86ba62442bc459",
            ],
        ),
        (
            Sha256,
            3,
            false,
            false,
            [
                "d88aa3887a487d5226d5d713817cc468d417d39ac3150b4b90b5b6448b59b95d",
                "4e0d2630957068d64cf33460b3b09d1fe2c23e85f874e46c0547322521a23c05",
            ],
        ),
        (
            Sha256,
            3,
            false,
            true,
            [
                "6a2ac917791db47b3645566a53187f69aacb844599d055bc18dcc3cbdffebdc7",
                "8e3acb3ddb89552ec5e1d9c1f5120acb3f08e19783390fea4ffeb5e29ecfc61f",
            ],
        ),
        (
            Sha256,
            3,
            true,
            true,
            [
                "42e6bc1e12de9df3fec4f594ef79be39a445e9a9364fd0b69b5f9a83a0c9436c",
                "1cb50ed32641554ce64f857814034c4bea72108a262a05b5c9fd56958359ea7e",
            ],
        ),
        (
            Sha256Cbor,
            1,
            false,
            false,
            [
                "8f8e3f5bc9428ae1af2b4970dc2105f8bbda21e14f20940633bcaa27f3bba02f",
                "b9f6a5c9a203f788705774b063b279f651ba426221e07f454080af692239b9e8",
            ],
        ),
        (
            Sha256Cbor,
            3,
            false,
            true,
            [
                "0c76744d19dac5268d324e61e25c61ca781be76bc55c5759c81dc6be59ef1b68",
                "323dd181a11a8741ef3b643aedd21f1c60a825fdb4c4c6cd395332b34e292aa7",
            ],
        ),
        (
            Sha256Cbor,
            3,
            true,
            true,
            [
                "c167cff3432ad6aef899e1b572299d3134863b9a62c535a09d371a3994cf1aeb",
                "ec3c9dee4377c6aca7242ace25599f4ae20919d88485d2cbfbe6d58229857146",
            ],
        ),
    ];
    for (algorithm, ahead, has_adapter, has_media, expected) in cases {
        let mut hasher = BlockHasher::new(algorithm, V0_31, UNSET);
        let mut parent = None;
        for (block, expected) in expected.into_iter().enumerate() {
            let (start, end) = (block * 16, block * 16 + 16);
            let mut extra = Vec::new();
            extra.extend(has_adapter.then_some(AD1));
            // The image begins at the second token after the first block.
            if has_media && end + ahead > 17 {
                extra.push(mm("cat", 17 - start as i64));
            }
            extra.extend((has_media && start == 0).then_some(S1));
            let digest =
                hasher.hash_block_ahead(parent.as_ref(), &tokens[start..end], &extra, &tokens[end..end + ahead]);
            assert_eq!(format!("{digest:?}"), expected, "{algorithm:?}, {ahead} tokens behind block {block}");
            parent = Some(digest);
        }
    }
}
