//! The ways in which the mutant breaks the protocol.

use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mutation {
    /// No fault: the mutant follows the protocol.
    Nothing,

    NoHello,
    HelloOfNobody,
    NoPlanck,
    OtherPrefix,
    NoKind,
    NoDescription,
    NoParameters,
    ParametersNotJson,
    ParametersOfText,
    ParametersNoSchema,
    UnknownEffect,
    TimeoutInWords,
    OtherSubject,
    OtherQueueGroup,

    NeverAnswers,
    NoVersion,
    UnknownKey,
    PlainText,
    OkIsNoText,
    ErrorInHeader,
    AnswersTwice,
    RefusesUnknownFields,
    TakesBadArgs,
    SilentOnBadArgs,
    DiesOfBadArgs,
    SilentOnMalformed,
    DiesOfMalformed,
    TakesStaleEpochs,
    SilentWhenTooLarge,
    MixesUpCalls,
    OneAtATime,

    ProgressIsText,
    PercentTooHigh,
    ProgressAfterAnswer,
    IgnoresCancel,
    IgnoresDeadline,
    RunsTwice,
    BusyInOtherWords,

    SummaryTooLong,
    SummaryEmpty,
    KeepsFromNowhere,
    KeepsEverything,
    SplitsPairs,
    CompactsShort,
    SkipIsNoBool,

    SameInstanceId,
    SharesNothing,
    NoBye,
    DropsRunning,
    IgnoresSigterm,
    EndsBadly,
}
