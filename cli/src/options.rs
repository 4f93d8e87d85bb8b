//! Options whose values have the form of negative numbers.

/// Lets every option of a command and of those below it take what has the form of a negative number, so that what is
/// said is what the option may be, and not that `-1` is no option.
#[must_use]
pub fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |argument: &clap::Arg| {
        !argument.is_positional() && matches!(argument.get_action(), clap::ArgAction::Set | clap::ArgAction::Append)
    };
    command
        .mut_args(|argument| if takes_value(&argument) { argument.allow_negative_numbers(true) } else { argument })
        .mut_subcommands(with_negative_numbers)
}
