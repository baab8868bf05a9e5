//! Arguments about states of Mamba and linear attention (`MambaModelConfig.verify_and_update_config`).

use crate::Model;
use vcr_core::{MambaCacheMode, NamedValue};

use super::{count, invalid};
use crate::vllm_args::ArgumentError;
use crate::vllm_args::VllmArgs;
use crate::vllm_args::words::Word;

/// The first release that does not keep states at the ends of all blocks.
const FIRST_WITHOUT_ALL: u8 = 32;
/// The last release that keeps states at the ends of all blocks by default, if the model allows it.
const LAST_WITH_ALL_BY_DEFAULT: u8 = 27;

const MODE: &str = "--mamba-cache-mode";
const BLOCK_SIZE: &str = "--mamba-block-size";

#[derive(Default)]
pub(super) struct States {
    mode: Option<MambaCacheMode>,
    block_size: Option<u32>,
}

impl States {
    pub(super) fn read_mode(&mut self, word: &Word, minor: u8) -> Result<String, ArgumentError> {
        let has_all = minor < FIRST_WITHOUT_ALL;
        let expected = if has_all { "`none`, `align` or `all`" } else { "`none` or `align`" };
        let mode = MambaCacheMode::of_name(&word.text()).filter(|mode| has_all || *mode != MambaCacheMode::All);
        let mode = mode.ok_or_else(|| invalid(word, expected.to_owned()))?;
        self.mode = Some(mode);
        Ok(match mode {
            MambaCacheMode::All => "mamba_cache_mode: \"all\", of models that can keep these states".to_owned(),
            _ => "states that are kept follow from `enable_prefix_caching`, whichever is asked for".to_owned(),
        })
    }

    pub(super) fn read_block_size(&mut self, word: &Word) -> Result<String, ArgumentError> {
        self.block_size = Some(count(word, 1)?);
        Ok("with prefix caching blocks of states are as long as those of attention, whichever is asked for".to_owned())
    }

    pub(super) fn apply(&self, args: &mut VllmArgs, model: Option<&Model>, minor: u8, errors: &mut Vec<ArgumentError>) {
        let input = &mut args.input;
        let longest = input.max_model_len.map(u64::from).or(model.map(|model| model.max_model_len));
        if let Some(size) = self.block_size.filter(|_| !input.enable_prefix_caching)
            && longest != Some(size.into())
        {
            errors.push(ArgumentError::Value {
                name: BLOCK_SIZE.to_owned(),
                value: size.to_string(),
                expected: "`--enable-prefix-caching` with it: without, a state is one of a whole sequence".to_owned(),
            });
        }
        // Mamba layers can keep all states, linear attention cannot. If the model is unknown, the argument
        // decides.
        let keeps_mamba = model.map(Model::has_mamba);
        let is_asked = self.mode == Some(MambaCacheMode::All) && keeps_mamba != Some(false);
        let is_default = minor <= LAST_WITH_ALL_BY_DEFAULT
            && self.mode.unwrap_or_default() == MambaCacheMode::None
            && keeps_mamba == Some(true);
        if !input.enable_prefix_caching || !(is_asked || is_default) {
            return;
        }
        if keeps_mamba == Some(true) {
            let written =
                if is_asked { format!("{MODE} all") } else { format!("{MODE} of 0.{minor}, which is `all`,") };
            let reason = format!(
                "the length of its blocks does not follow here from a model with states of Mamba: say `{MODE} align`, or \
                 `kv_cache_groups`, `block_size` and `mamba_cache_mode` of an engine"
            );
            errors.push(ArgumentError::NotSimulated { written, reason });
        } else if self.block_size.is_some() {
            let reason = "with it blocks of attention are multiples of this length: say `--block-size`".to_owned();
            errors.push(ArgumentError::NotSimulated { written: format!("{BLOCK_SIZE} with {MODE} all"), reason });
        } else {
            input.mamba_cache_mode = MambaCacheMode::All;
        }
    }
}
