"""The options of Spark's own streaming sources, to find misspelt ones, which Spark ignores.

Spark reads the options that it knows, in any case, and does not report the others: with
``maxOffsetPerTrigger`` an epoch has no bound. The names are those of Spark 4.0 to 4.3, from its
option classes and its Kafka connector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.option_parsers import near_match

__all__ = ["consumer_options", "doubtful_options", "known_options", "refuse_misspelt"]

_FILES = """
    path maxFilesPerTrigger maxBytesPerTrigger latestFirst maxFileAge fileNameOnly maxCachedFiles
    discardCachedInputRatio cleanSource sourceArchiveDir pathGlobFilter recursiveFileLookup
    modifiedBefore modifiedAfter basePath ignoreCorruptFiles ignoreMissingFiles
    ignoreInvalidPartitionPaths ignoredPathSegmentRegex compression
"""
_TEXTS = """
    mode columnNameOfCorruptRecord dateFormat timestampFormat timestampNTZFormat timeFormat timeZone
    enableDateTimeParsingFallback encoding charset lineSep locale multiLine samplingRatio
    singleVariantColumn preferDate
"""
_FORMATS = {
    "json": f"""{_TEXTS}
        primitivesAsString prefersDecimal allowComments allowUnquotedFieldNames allowSingleQuotes
        allowNumericLeadingZeros allowNumericLeadingZero allowBackslashEscapingAnyCharacter
        allowUnquotedControlChars allowNonNumericNumbers dropFieldIfAllNull ignoreNullFields
        inferTimestamp useUnsafeRow maxNestingDepth maxNumLen maxStringLen pretty sortKeys
        writeNonAsciiCharacterAsCodePoint""",
    "csv": f"""{_TEXTS}
        sep delimiter quote escape comment header inferSchema enforceSchema columnPruning
        ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace nullValue emptyValue nanValue positiveInf
        negativeInf maxColumns maxCharsPerColumn maxMalformedLogPerPartition inputBufferSize
        charToEscapeQuoteEscaping unescapedQuoteHandling escapeQuotes quoteAll extension""",
    "xml": f"""{_TEXTS}
        rowTag rootTag excludeAttribute attributePrefix valueTag nullValue inferSchema
        ignoreSurroundingSpaces ignoreNamespace rowValidationXSDPath wildcardColName prefersDecimal
        arrayElementName declaration indent validateName useLegacyXMLParser""",
    "text": "wholetext lineSep encoding",
    "parquet": "mergeSchema datetimeRebaseMode int96RebaseMode",
    "orc": "mergeSchema",
    "avro": """
        avroSchema avroSchemaUrl mode datetimeRebaseMode positionalFieldMatching ignoreExtension
        recursiveFieldMaxDepth recordName recordNamespace enableStableIdentifiersForUnionType
        stableIdentifierPrefixForUnionType""",
    "binaryfile": "",
}
_KAFKA = """
    assign subscribe subscribePattern startingOffsets startingOffsetsByTimestamp
    startingOffsetsByTimestampStrategy startingTimestamp endingOffsets endingOffsetsByTimestamp
    endingTimestamp failOnDataLoss minPartitions maxRecordsPerPartition maxOffsetsPerTrigger
    minOffsetsPerTrigger maxTriggerDelay groupIdPrefix includeHeaders kafkaConsumer.pollTimeoutMs
    fetchOffset.numRetries fetchOffset.retryIntervalMs
"""
_CONSUMER = """
    allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter bootstrap.servers
    check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms
    default.api.timeout.ms enable.metrics.push exclude.internal.topics fetch.max.bytes
    fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
    group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms partition.assignment.strategy receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms
    retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
    sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.mechanism sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
    session.timeout.ms socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
    ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
    ssl.truststore.password ssl.truststore.type
"""


def known_options(source: str) -> list[str]:
    """Return the options of one of Spark's own streaming sources; empty for any other source."""
    name = source.lower()
    if name == "kafka":
        return _KAFKA.split()
    return [*_FILES.split(), *_FORMATS[name].split()] if name in _FORMATS else []


def consumer_options() -> list[str]:
    """Return the settings of Kafka's consumer that the source passes on, without ``kafka.``."""
    return _CONSUMER.split()


def refuse_misspelt(source: str, options: Iterable[str]) -> None:
    """Refuse options that Spark would ignore and that resemble one that it reads.

    :param source: the source's format.
    :raises SpecError: an option is misspelt.
    """
    known = known_options(source)
    near = {name: near_match(name, known) for name in _unknown(source, options)}
    wrong = [f"{name!r} (did you mean {meant!r}?)" for name, meant in near.items() if meant]
    if wrong:
        raise SpecError(
            f"source: format {source!r} has no option {', '.join(wrong)}. Spark would ignore it "
            "silently, so it is refused"
        )


def doubtful_options(source: str, options: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each option that Spark may ignore."""
    for name in _unknown(source, options):
        yield f"source: format {source!r} has no option {name!r} in Spark 4; Spark ignores it."
    if source.lower() != "kafka":
        return
    consumer = consumer_options()
    for name in options:
        word = name.lower().removeprefix("kafka.")
        meant = near_match(word, consumer)
        if name.lower().startswith("kafka.") and meant and meant != word:
            yield (
                f"source: {name!r} goes to Kafka's consumer as it is; did you mean "
                f"{f'kafka.{meant}'!r}?"
            )


def _unknown(source: str, options: Iterable[str]) -> Iterator[str]:
    known = {name.lower() for name in known_options(source)}
    for name in options if known else ():
        # A name with a dot is Hadoop's own, such as fs.s3a.endpoint, or the Kafka consumer's.
        passed_on = name.lower().startswith("kafka.") if source.lower() == "kafka" else "." in name
        if name.lower() not in known and not passed_on:
            yield name
